"""Lines of kernel timings become tables: merged, checked, or refused naming the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from calibrate.tables.kernel_lines import read_lines
from calibrate.tables.kernel_tables import build_tables, target_of
from calibrate.tables.link_fit import fit_regimes, regime_seconds
from costmodels.hardware.gpus import load_gpu
from costmodels.tables.kinds import KINDS
from costmodels.tables.store import load_folder, load_table
from scenarios.calibration.kernels import import_facts
from scenarios.commands import app
from sim.errors import ScenarioError
from tests.calibrate.kernel_lines import BF16, GRIDS, MACHINE, made_lines, timing, write_lines
from tests.properties.checkout import CHECKOUT

GEMM = {"m": 1, "n": 4096, "k": 4096}


def read(tmp_path: Path, lines: list[dict[str, Any]], tail: str = "") -> Any:
    path = write_lines(tmp_path / "lines.jsonl", lines)
    with path.open("a", encoding="utf-8") as file:
        file.write(tail)
    return read_lines([path])


def test_every_family_becomes_tables_that_know_where_they_come_from(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "lines.jsonl", made_lines(*GRIDS))
    facts = import_facts([path], out=tmp_path / "cal", gpu=None)
    tables = load_folder(tmp_path / "cal")
    assert {table.meta.kind for table in tables} == set(GRIDS)
    assert facts["timings"] == sum(map(len, tables)) == sum(t["points"] for t in facts["tables"])
    for table in tables:
        meta = table.meta
        assert meta.gpu == "H200-SXM"
        assert dict(meta.machines[0]) == MACHINE
        assert list(meta.inputs) == ["lines.jsonl"]
        assert meta.engine_version == "torch 2.11.0, triton 3.6.0"
        assert (meta.correctness, meta.launches, meta.is_cool) == (1e-3, "graph", True)
        assert bool(meta.fits) == (meta.kind in ("all_reduce", "all_gather", "reduce_scatter")) | (
            meta.kind == "send_recv"
        )
    held_out = {table.meta.kind: table.meta.held_out for table in tables}
    gemm = held_out["gemm"]
    assert gemm is not None
    assert gemm.median is not None
    assert gemm.num_points + gemm.num_outside == pytest.approx(112 / 5, abs=10)
    assert gemm.median < 0.05


def test_repeats_of_several_files_and_machines_are_merged_by_their_median(tmp_path: Path) -> None:
    paths = []
    for place, seconds in enumerate((1e-3, 3e-3, 2e-3)):
        machine = {**MACHINE, "id": f"machine{place}"}
        lines = [machine, timing("gemm", GEMM, seconds, machine=machine["id"])]
        paths.append(write_lines(tmp_path / f"{place}.jsonl", lines))
    lines_read = read_lines(paths)
    (table,) = build_tables(lines_read, target_of(lines_read, None))
    assert table.seconds.tolist() == [2e-3]
    assert len(table.meta.machines) == len(table.meta.inputs) == 3


@pytest.mark.parametrize(("clock", "is_cool"), [(1980.0, True), (1500.0, False), (None, True)])
def test_a_clock_that_was_held_down_is_known(
    clock: float | None, is_cool: bool, tmp_path: Path
) -> None:
    machine = {**MACHINE, "clocks": {"max_sm_mhz": 1980.0}}
    state = {"kind": "state", "machine": MACHINE["id"], "family": "gemm", "sm_clock_mhz": clock}
    lines = read(tmp_path, [machine, state, timing("gemm", GEMM, 1.0)])
    (table,) = build_tables(lines, load_gpu("H200"))
    assert table.meta.is_cool == is_cool


def test_a_torn_last_line_is_ignored_and_no_other(tmp_path: Path) -> None:
    lines = [MACHINE, timing("gemm", GEMM, 1e-3)]
    assert len(read(tmp_path, lines, '{"kind": "tim').timings) == 1
    with pytest.raises(ScenarioError, match=r"lines\.jsonl:3: not JSON"):
        read(tmp_path, lines, '{"kind": "tim\n{"kind": "state"}\n')


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"kind": "time"}, "kind is 'time', not one of machine, timing, refused, state"),
        (timing("conv", GEMM, 1.0), "family 'conv' is not one of gemm"),  # type: ignore[arg-type]
        (timing("gemm", {"m": 1}, 1.0), "shape of gemm has m, not n, k, m"),
        (
            timing("gemm", {**GEMM, "m": "x"}, 1.0),
            r"field shape\.m must be a number.*'x'",
        ),
        (timing("gemm", GEMM, 0.0), "field seconds must be a number above 0, not 0.0"),
        (timing("gemm", GEMM, float("nan")), "field seconds must be a number above"),
        (
            timing("gemm", GEMM, 1.0, formats={"weights": "int3"}),
            r"field formats\.weights is 'int3'",
        ),
        (timing("gemm", GEMM, 1.0, formats={"scale": "x"}), r"field formats\.scale is not one of"),
        (timing("gemm", GEMM, 1.0, machine="m9"), "machine 'm9' is described nowhere"),
    ],
)
def test_a_bad_line_is_refused_with_its_place(
    tmp_path: Path, line: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScenarioError, match=r"lines\.jsonl:3: " + message):
        read(tmp_path, [MACHINE, timing("gemm", GEMM, 1e-3), line])


def test_the_device_must_be_one_that_is_known(tmp_path: Path) -> None:
    lines = read(tmp_path, [{**MACHINE, "device": "Radeon"}, timing("gemm", GEMM, 1e-3)])
    with pytest.raises(ScenarioError, match=r"'Radeon' is no GPU .* --gpu NAME"):
        target_of(lines, None)
    assert target_of(lines, "H100").name == "H100-SXM"
    other = {**MACHINE, "id": "b", "device": "NVIDIA L4"}
    both = [MACHINE, other, timing("gemm", GEMM, 1.0), timing("gemm", GEMM, 1.0, machine="b")]
    with pytest.raises(ScenarioError, match="several devices"):
        target_of(read(tmp_path, both), None)
    names = ["NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA L4"]
    found = [load_gpu(name).name for name in names]
    assert found == ["H200-SXM", "A100-SXM-80GB", "H100-SXM", "L4"]


def test_a_changed_timing_is_another_table(tmp_path: Path) -> None:
    lines = made_lines("gemm")
    hashes = set()
    for factor in (1.0, 1.0, 1.01):
        changed = [*lines[:-1], {**lines[-1], "seconds": lines[-1]["seconds"] * factor}]
        path = write_lines(tmp_path / "lines.jsonl", changed)
        import_facts([path], out=tmp_path / "cal", gpu=None)
        hashes.add(load_folder(tmp_path / "cal")[0].content_hash)
    assert len(hashes) == 2


def test_elementwise_kernels_are_tables_of_one_op_by_bytes_a_row(tmp_path: Path) -> None:
    lines = read(tmp_path, made_lines("elementwise"))
    tables = build_tables(lines, load_gpu("H200"))
    assert {table.meta.variant for table in tables} == set(GRIDS["elementwise"]["op"])
    widths = 4.0 * np.array(GRIDS["elementwise"]["width"])
    assert np.unique(tables[0].columns["bytes_per_row"]).tolist() == widths.tolist()


def test_a_fit_finds_latency_bandwidth_and_where_the_protocol_changes() -> None:
    num_bytes = np.exp2(np.arange(10.0, 30))
    plain = 5e-6 + num_bytes / 300e9
    (regime,) = fit_regimes(num_bytes, plain)
    assert regime[1:] == pytest.approx((5e-6, 300e9), rel=1e-3)
    two = np.where(num_bytes < 2**20, 4e-6 + num_bytes / 50e9, 20e-6 + num_bytes / 400e9)
    first, second = fit_regimes(num_bytes, two)
    assert first == pytest.approx((2**19.5, 4e-6, 50e9), rel=1e-3)
    assert second[1:] == pytest.approx((20e-6, 400e9), rel=1e-3)
    np.testing.assert_allclose(regime_seconds((first, second), num_bytes), two, rtol=1e-3)


def test_the_command_prints_a_row_a_table(tmp_path: Path) -> None:
    refused = {"kind": "refused", "family": "gemm", "kernel": "cutlass", "reason": "not here"}
    path = write_lines(tmp_path / "l.jsonl", [*made_lines("gemm", "all_reduce"), refused])
    command = ["calibrate", "import", str(path), "--out", str(tmp_path / "cal")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    for text in ("150 timings on H200-SXM: 2 tables", "gemm", "all_reduce, 8 ranks", "not here"):
        assert text in result.output
    as_json = json.loads(CliRunner().invoke(app, [*command, "--format", "json"]).output)
    assert [table["family"] for table in as_json["tables"]] == ["all_reduce", "gemm"]
    assert as_json["refused"][0]["cases"] == 1
    missing = CliRunner().invoke(app, ["calibrate", "import", "no.jsonl", "--out", "x"])
    assert missing.exit_code == 2
    assert "no.jsonl" in missing.output


def test_formats_a_kernel_has_no_say_in_are_those_it_computes_in(tmp_path: Path) -> None:
    lines = [MACHINE, timing("gemm", GEMM, 1.0, formats={"activations": "fp8", "weights": "fp8"})]
    lines += [timing("gemm", GEMM, 1.0, formats={}), timing("gemm", GEMM, 1.0, formats=BF16)]
    tables = build_tables(read(tmp_path, lines), load_gpu("H200"))
    assert [table.meta.precision.kv for table in tables] == ["bfloat16", "fp8"]


def test_our_own_measurements_are_whole_and_read() -> None:
    folder = CHECKOUT / "costmodels" / "measured" / "h200-sxm"
    if not folder.is_dir():
        pytest.skip("no measurements of the H200 are in the package yet")
    for path in folder.glob("*.parquet"):
        table = load_table(path)
        assert table.meta.gpu == "H200-SXM"
        assert table.meta.machines
        assert set(table.columns) == {*KINDS[table.meta.kind].shape, "seconds"}
