"""Each operator family uses the source configured for it, and a run reports which."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from costmodels.operators.kernel_times import KernelTimes
from costmodels.steps.describe import simple_step
from costmodels.steps.evidence import family_labels
from costmodels.tables.shapes import DecodeAttentionTable, ExpertShape, GroupedGemmTable, Heads
from costmodels.tables.store import load_folder
from reports.run.tables import operator_table
from scenarios.build.replica import Replica
from scenarios.build.resolve import resolve
from scenarios.calibration.contents import parse_operators
from scenarios.calibration.kernels import import_facts
from scenarios.commands import app
from scenarios.files.load import load_scenario, parse_scenario
from scenarios.run.engine_sections import calibration_address
from scenarios.run.simulate import simulate
from sim.errors import ScenarioError
from sim.shape import StepShape, grown
from tests.calibrate.kernel_lines import GRIDS, made_lines, write_lines

PLAIN = ("gemm", "prefill_attention", "decode_attention", "elementwise", "embedding", "sampling")
# Model, GPUs, families that a folder of all made-up tables serves.
MODELS = {
    "llama-3.1-8b": (1, {*PLAIN}),
    "llama-3.1-70b": (8, {*PLAIN, "all_reduce", "all_gather"}),
    "qwen3-30b-a3b": (1, {*PLAIN, "grouped_gemm"}),
    "kimi-linear-48b-a3b": (
        1,
        {*PLAIN, "grouped_gemm", "mla_decode", "kda_chunk", "kda_recurrent"}
        - {"prefill_attention", "decode_attention"},
    ),
    "qwen3.5-397b-a17b": (
        2,
        {*PLAIN, "grouped_gemm", "gdn_chunk", "gdn_recurrent", "all_reduce", "all_gather"},
    ),
}


@pytest.fixture(name="slow_folder", scope="module")
def _slow_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return imported(tmp_path_factory.mktemp("slow"), scale=2.0)


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return imported(tmp_path_factory.mktemp("calibration"))


def imported(folder: Path, **changes: float) -> Path:
    path = write_lines(folder / "lines.jsonl", made_lines(*GRIDS, **changes))
    import_facts([path], out=folder / "tables", gpu=None)
    return folder / "tables"


def built(operators: str | dict[str, str], model: str = "llama-3.1-8b", tp: int = 1) -> Replica:
    return resolve(scenario(operators, model, tp))


def scenario(operators: str | dict[str, str], model: str = "llama-3.1-8b", tp: int = 1) -> Any:
    return parse_scenario(
        {
            "model": model,
            # Small batches compile fast.
            "engine": {
                "operators": operators,
                "tensor_parallel_size": tp,
                "max_num_batched_tokens": 2048,
                "max_num_seqs": 128,
            },
            "workload": {"preset": "azure-conv", "num_requests": 20},
            "bands": False,
        }
    )


def kernels_of(made: Replica) -> KernelTimes:
    return made.cost.kernels


def rows(made: Replica, shape: StepShape) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in made.cost.describe(shape):
        found[row.name] = found.get(row.name, 0.0) + row.seconds
    return found


@pytest.mark.parametrize("model", MODELS)
def test_a_folder_serves_all_it_has_and_a_note_says_what_not(model: str, folder: Path) -> None:
    gpus, served = MODELS[model]
    made = built(str(folder), model, gpus)
    sources = {one.family: one.source for one in made.kernels.operators.families}
    assert {family for family, source in sources.items() if source == str(folder)} == served
    rest = set(sources) - served
    assert all(sources[family] == "fitted" for family in rest)
    assert all(family in " ".join(made.kernels.operators.notes) for family in rest)
    labels = family_labels(kernels_of(made))
    assert set(labels) == served


@pytest.mark.parametrize("model", MODELS)
def test_every_family_really_prices_steps(model: str, folder: Path, slow_folder: Path) -> None:
    """Tables twice as slow, of one family at a time, make the step slower."""
    gpus, served = MODELS[model]
    clips = built("fitted", model, gpus).model.clip_tokens
    shapes = [simple_step(64, 2000, clip_tokens=clips), simple_step(0, 0, 1024, clip_tokens=clips)]
    plain = built(dict.fromkeys(served, str(folder)), model, gpus)
    for family in served:
        changed = built(
            dict.fromkeys(served, str(folder)) | {family: str(slow_folder)}, model, gpus
        )
        grew = [changed.cost.price(s).gpu_ns - plain.cost.price(s).gpu_ns for s in shapes]
        assert max(grew) > 0, family
        assert min(grew) >= 0, family


def test_a_named_family_alone_is_served_by_its_source(folder: Path) -> None:
    shape = simple_step(64, 2000)
    fitted, made = rows(built("fitted"), shape), rows(built({"gemm": str(folder)}), shape)
    changed = {name for name in fitted if made[name] != fitted[name]}
    assert changed == {"qkv", "o", "gate_up", "down", "lm_head"}
    both = rows(built({"default": str(folder), "gemm": "fitted"}), shape)
    assert {name for name in fitted if both[name] == fitted[name]} == changed
    datasheet = built({"elementwise": "datasheet"})
    generic, made = rows(built("datasheet"), shape), rows(datasheet, shape)
    assert made["norms"] == generic["norms"] != fitted["norms"]
    assert made["embedding"] == fitted["embedding"]
    assert made["qkv"] == fitted["qkv"]


def test_decode_attention_is_the_tables(folder: Path) -> None:
    made = built({"decode_attention": str(folder)})
    (table,) = [t for t in load_folder(folder) if t.meta.kind == "decode_attention"]
    lookup = DecodeAttentionTable(table)
    heads = Heads(q_heads=32, kv_heads=8, head_dim=128)
    rates = kernels_of(made).attention_rates(256, equal_contexts=True)
    launch_s = rows(made, simple_step(1, 100))["attention"]
    for seqs, context in ((1, 4000), (16, 1000), (64, 500), (256, 3000), (256, 8192)):
        columns = {
            "decode_seqs": np.array([float(seqs)]),
            "decode_context_tokens": np.array([float(seqs * (context - 1))]),
        }
        at = np.array([float(seqs)]), np.array([float(context)])
        expected = 32 * lookup.seconds(*at, heads)[0][0]
        assert launch_s + rates.decode_s(columns)[0] == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("model", MODELS)
def test_jumping_equals_stepping_and_a_price_takes_microseconds(model: str, folder: Path) -> None:
    gpus, _ = MODELS[model]
    made = built(str(folder), model, gpus)
    clips = made.model.clip_tokens
    shape = simple_step(37, 450, clip_tokens=clips)  # a measured context, 512, lies ahead
    run = made.cost.price_decodes(shape, 200)
    stepped = np.cumsum([made.cost.price(grown(shape, step)).gpu_ns for step in range(200)])
    assert run.gpu_cumulative_ns == stepped.tolist()
    mixed = simple_step(20, 800, 1024, 2048, clip_tokens=clips)
    best_s = min(_timed(made, mixed) for _ in range(5))
    assert best_s < 10e-6


def _timed(made: Replica, shape: StepShape) -> float:
    start = time.perf_counter()
    for _ in range(200):
        made.cost.price(shape)
    return (time.perf_counter() - start) / 200


@pytest.mark.parametrize(
    ("operators", "message"),
    [
        ({"attention": "fitted"}, "'attention' is no family .* default, gemm, grouped_gemm"),
        ({"copy": "ours"}, "'copy' is no family"),
        ({"gemm": "magic"}, "operators 'magic' is neither fitted"),
        ({"kda_chunk": "FOLDER"}, None),
        ({"decode_attention": "FOLDER"}, "decode_attention: .*nothing at head_dim 64, window 128"),
        ({"grouped_gemm": "FOLDER"}, "grouped_gemm: .* weights in mxfp4"),
    ],
)
def test_a_named_family_without_tables_is_refused(
    operators: dict[str, str], message: str | None, folder: Path
) -> None:
    choice = {name: str(folder) if s == "FOLDER" else s for name, s in operators.items()}
    if message is None:  # the model has no such layers
        assert built(choice, "gpt-oss-20b").kernels.operators.tables is None
        return
    with pytest.raises(ScenarioError, match=message):
        _ = built(choice, "gpt-oss-20b").kernels


def test_a_gpu_that_we_have_not_measured_is_refused() -> None:
    with pytest.raises(ScenarioError, match="no measurements of L4 in fleetcast"):
        _ = resolve(
            parse_scenario(
                {
                    "model": "qwen3-0.6b",
                    "hardware": {"gpu": "L4"},
                    "engine": {"operators": "ours"},
                    "workload": {"preset": "azure-conv", "num_requests": 10},
                }
            )
        ).kernels


def test_one_changed_timing_is_another_answer_at_another_address(tmp_path: Path) -> None:
    lines = made_lines("gemm", "elementwise")
    place = next(
        i for i, line in enumerate(lines) if line.get("shape") == {"m": 64, "n": 28672, "k": 4096}
    )
    found = []
    for name, factor in (("a", 1.0), ("b", 1.0), ("c", 1.2)):
        changed = [dict(line) for line in lines]
        changed[place]["seconds"] *= factor
        path = write_lines(tmp_path / "lines.jsonl", changed)
        import_facts([path], out=tmp_path / name, gpu=None)
        # The folder's own name is no part of the address of what is in it.
        path = tmp_path / "tables"
        path.unlink(missing_ok=True)
        path.symlink_to(tmp_path / name)
        result = simulate(scenario({"gemm": str(path)}))
        conditions = result.summary["conditions"]
        (gemm,) = [one for one in conditions["operators"] if one["family"] == "gemm"]
        step_ns = built({"gemm": str(path)}).cost.price(simple_step(64, 1000)).gpu_ns
        found.append((gemm["tables"][0]["hash"], conditions["calibration_sha256"], step_ns))
    assert found[0] == found[1]
    assert all(a != c for a, c in zip(found[0], found[2], strict=True))
    assert calibration_address(built("fitted")) != calibration_address(built("datasheet"))


def test_a_run_names_each_family(folder: Path, tmp_path: Path) -> None:
    text = "model: llama-3.1-8b\nworkload: {preset: azure-conv, num_requests: 5}\nbands: false\n"
    (tmp_path / "s.yaml").write_text(text, encoding="utf-8")
    out = tmp_path / "run"
    chosen = f"engine.operators={{gemm: {folder}, default: fitted}}"
    command = ["simulate", str(tmp_path / "s.yaml"), "--set", chosen, "--out", str(out)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    operators = {one["family"]: one for one in summary["conditions"]["operators"]}
    assert set(operators) == set(PLAIN)
    gemm = operators["gemm"]
    assert (gemm["source"], gemm["label"]) == (str(folder), "measured")
    assert operators["elementwise"]["source"] == "fitted"
    assert "Where kernel times come from" in result.output
    assert gemm["hash"][:12] in result.output
    rows = {row[0]: row[1:] for row in operator_table(summary).rows}
    assert gemm["hash"][:12] in str(rows["gemm"][1])
    assert rows["elementwise"] == ("fitted", "", "fitted")
    # The scenario in the folder runs again from anywhere.
    saved = load_scenario(out / "scenario.yaml")
    assert isinstance(saved.engine.operators, dict)
    assert Path(saved.engine.operators["gemm"]).resolve() == folder.resolve()


def test_the_command_line_takes_families_too() -> None:
    assert parse_operators("aic") == "aic"
    assert parse_operators("{gemm: ours, default: aic}") == {"gemm": "ours", "default": "aic"}
    for text in ("{gemm: [ours]}", "{gemm: ours"):
        with pytest.raises(ScenarioError, match="--operators"):
            parse_operators(text)


def test_experts_cost_by_the_rows_and_experts_that_are_reached(tmp_path: Path) -> None:
    """Dealt like cards, 8 tokens reach 64 of 128 experts: as many as 11 that choose evenly."""
    path = write_lines(tmp_path / "l.jsonl", made_lines("grouped_gemm", slope=0.0))
    import_facts([path], out=tmp_path / "t", gpu=None)
    (table,) = load_folder(tmp_path / "t")
    lookup = GroupedGemmTable(table)
    experts = ExpertShape(hidden=2048, inter=768, top_k=8, num_experts=128)
    dealt = lookup.seconds(np.array([8.0]), experts)[0]
    same = lookup.routed_seconds(np.array([64.0]), np.array([64.0]), experts)[0]
    fewer = lookup.routed_seconds(np.array([64.0]), np.array([51.0]), experts)[0]
    assert same == pytest.approx(dealt)
    assert fewer / dealt == pytest.approx(51 / 64, rel=0.02)
