"""Measured serving points of AIConfigurator's package: how they are read, and three predictions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from sim.errors import TraceError
from tests.silicon import points as silicon_points
from tests.silicon.launches import launch_options, parallel_options, refusal
from tests.silicon.models import Predicted, estimated, simulated
from tests.silicon.points import SiliconPoint, model_config, read_silicon_points
from tests.silicon.scores import Score, Scored, score, served

needs_aic = pytest.mark.skipif(
    find_spec("aiconfigurator_core") is None, reason="fleetcast[aic] is not installed"
)
HEADER = (
    "id,silicon_data_source,backend,backend_version,model_path,system,precision,mode,isl,osl,"
    "gemm_quant_mode,moe_quant_mode,batch_size,tp_size,pp_size,attention_dp_size,moe_tp_size,"
    "moe_ep_size,silicon_ttft_ms,silicon_tpot_ms\n"
)
ROW = (
    "a,source_file=2026-04-06.csv; silicon_concurrency=64,vllm,0.19.0,org/M,h200_sxm,fp8,agg,1024,"
    "512,fp8,fp8,16,2,1,4,1,8,100.5,20.25\n"
)


@contextmanager
def package(folder: Path, rows: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (folder / "systems").mkdir()
    (folder / "systems/silicon_sample.csv").write_text(HEADER + rows, encoding="utf-8")
    with monkeypatch.context() as patched:
        patched.setattr(silicon_points, "_package", lambda: folder)
        yield


def point(**fields: Any) -> SiliconPoint:
    values: dict[str, Any] = {
        "row_id": "a",
        "model": "org/M",
        "system": "h200_sxm",
        "gpu": "H200-SXM",
        "backend": "vllm",
        "version": "",
        "precision": "fp8",
        **dict.fromkeys(("tp", "pp", "dp", "moe_tp", "ep", "isl", "osl", "concurrency"), 1),
        "gemm_mode": "",
        "moe_mode": "",
        "is_inference_x": True,
        "is_dynamo": False,
        "ttft_s": 0.1,
        "tpot_s": 0.01,
    }
    return SiliconPoint(**values | fields)


def test_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with package(tmp_path, ROW, monkeypatch):
        (found,), skipped = read_silicon_points()
    assert skipped == {}
    assert (found.gpu, found.version, found.tp, found.dp, found.ep) == (
        "H200-SXM",
        "0.19.0",
        2,
        4,
        8,
    )
    # The batch is that of one attention replica; the concurrency is that of all four.
    assert (found.isl, found.osl, found.concurrency) == (1024, 512, 64)
    assert (found.ttft_s, found.tpot_s) == pytest.approx((0.1005, 0.02025))
    assert found.is_inference_x
    assert found.family == "org/M|h200_sxm|vllm|fp8"


def test_what_is_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = "a,source_file=/x/M.csv,vllm,,org/M,h100_sxm,,agg,8,8,,,16,1.0,1,,2.0,1.0,1,1\n"
    with package(tmp_path, bare, monkeypatch):
        (found,), _ = read_silicon_points()
    # Two ranks of experts for one of attention: two attention replicas.
    assert (found.precision, found.dp, found.concurrency) == ("bf16", 2, 32)
    assert not found.is_inference_x


def test_skipped_rows_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        ROW.replace("vllm", "sglang"),
        ROW.replace(",agg,", ",disagg,"),
        ROW.replace("h200_sxm", "q1"),
        ROW.replace("100.5", ""),
        ROW,
    ]
    with package(tmp_path, "".join(rows), monkeypatch):
        points, skipped = read_silicon_points("vllm")
    assert len(points) == 1
    assert skipped == {
        "another backend": 1,
        "mode disagg": 1,
        "no GPU of that name: q1": 1,
        "no TTFT or no TPOT": 1,
    }


@pytest.mark.parametrize(("old", "new"), [("100.5", "fast"), ("20.25", "-1"), (",1024,", ",x,")])
def test_a_bad_number_names_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    with (
        package(tmp_path, ROW + ROW.replace(old, new), monkeypatch),
        pytest.raises(TraceError, match=r"silicon_sample\.csv, line 3: "),
    ):
        read_silicon_points()


def test_no_such_file_or_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silicon_points, "_package", lambda: tmp_path)
    with pytest.raises(TraceError, match="has no systems/silicon_sample"):
        read_silicon_points()
    with pytest.raises(TraceError, match=r"no config\.json of org/M"):
        model_config("org/M")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise ModuleNotFoundError

    monkeypatch.setattr("importlib.resources.files", missing)
    with pytest.raises(TraceError, match="pip install"):
        read_silicon_points()


def test_refused_points_count_as_all_wrong() -> None:
    right = Predicted(ttft_s=0.1, tpot_s=0.012)
    rows = [
        Scored(point=point(), ours=right, aic="no"),
        Scored(point=point(), ours="pipeline parallelism", aic="no"),
    ]
    found = score(rows, lambda row: row.ours)
    assert (found.points, found.answered) == (2, 1)
    assert (found.tpot, found.ttft) == pytest.approx((0.6, 0.5))
    assert (found.answered_tpot, found.tpot_bias) == pytest.approx((0.2, 0.2))
    assert served(rows) == []
    assert served([*rows, rows[0]]) == [*rows, rows[0]]


def test_reasons_of_refusals() -> None:
    assert refusal(point()) == ""
    assert refusal(point(precision="fp4")) == ""
    assert refusal(point(backend="sglang")) == ""
    assert refusal(point(dp=2, ep=2)) == ""
    assert refusal(point(tp=2, dp=2, ep=2, is_inference_x=False)) == (
        "experts over 2 ranks, not all 4"
    )
    assert refusal(point(pp=2)) == "pipeline parallelism"
    assert "in one figure" in refusal(point(system="gb200", gpu="GB200", tp=36))


@pytest.mark.parametrize(
    ("fields", "layout"),
    [
        ({"tp": 64, "moe_tp": 8, "ep": 8}, (8, 1)),
        ({"dp": 64, "moe_tp": 8, "ep": 8}, (1, 8)),
        ({"tp": 4, "dp": 4, "ep": 16}, (4, 1)),
        ({"tp": 8, "ep": 8}, (8, 1)),
        ({"dp": 8, "ep": 8}, (1, 8)),
    ],
)
def test_ranks_of_the_database(fields: dict[str, int], layout: tuple[int, int]) -> None:
    asked = point(**fields)
    found = parallel_options(asked)
    assert (found["tensor_parallel_size"], found["data_parallel_size"]) == layout
    assert found["enable_expert_parallel"]
    assert refusal(asked) == ""


def test_launches_of_the_engines() -> None:
    sglang = launch_options(point(backend="sglang", model="deepseek-ai/DeepSeek-R1", gpu="B200"))
    assert sglang["engine"]["profile"] == "sglang-0.5"
    assert sglang["engine"]["scheduler"]["scheduler_recv_interval"] == 10
    assert sglang["kv"]["cache_dtype"] == "fp8"
    drafting = point(backend="trtllm", model="deepseek-ai/DeepSeek-R1", version="1.2.0rc6.post3")
    trtllm = launch_options(drafting)
    assert trtllm["engine"]["speculative"] == {"method": "mtp", "num_speculative_tokens": 1}
    assert "speculative" not in launch_options(point(backend="trtllm"))["engine"]


@needs_aic
def test_the_package_has_the_points() -> None:
    points, _ = read_silicon_points("vllm")
    assert len(points) > 1000
    assert 0.4 < sum(found.is_held_out for found in points) / len(points) < 0.6
    assert {found.gpu for found in points} <= {"H100-SXM", "H200-SXM", "B200", "B300"}


@needs_aic
def test_three_points_end_to_end() -> None:
    points, _ = read_silicon_points("vllm")
    asked = ("meta-llama/Llama-3.1-70B", "H200-SXM", 1024, 1024, 16)
    chosen = [
        found
        for found in points
        if (found.model, found.gpu, found.isl, found.osl, found.concurrency) == asked
        and found.tp in (2, 4, 8)
        and found.precision == "fp8"
    ]
    assert len(chosen) == 3
    for found in chosen:
        ours, aic = simulated(found, "fitted"), estimated(found)
        assert isinstance(ours, Predicted)
        assert isinstance(aic, Predicted)
        assert ours.tpot_s == pytest.approx(found.tpot_s, rel=0.3)
        assert ours.ttft_s == pytest.approx(found.ttft_s, rel=0.5)
        assert aic.tpot_s == pytest.approx(found.tpot_s, rel=0.3)


BARS = {"vllm": (0.14, 0.27, 0.01), "sglang": (0.20, 0.55, 0.04), "trtllm": (0.22, 0.42, 0.04)}
"""By engine: mean absolute errors of TPOT and TTFT, and the share refused, that a sample stays in;
what the whole file has is in docs/accuracy.md."""


@needs_aic
@pytest.mark.parametrize("backend", sorted(BARS))
def test_errors_of_a_sample(backend: str) -> None:
    points, _ = read_silicon_points(backend)
    sample = sorted(points, key=lambda one: one.row_id)[:: len(points) // 60]
    rows = [Scored(point=one, ours=simulated(one, "fitted"), aic="not asked") for one in sample]
    found: Score = score(rows, lambda row: row.ours)
    tpot, ttft, refused = BARS[backend]
    assert 1 - found.answered / found.points <= refused
    assert found.answered_tpot <= tpot
    assert found.answered_ttft <= ttft
