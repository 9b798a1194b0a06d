"""Operator tables: files, interpolation, labels, and the import of AIConfigurator's."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from costmodels.hardware.gpus import load_gpu
from costmodels.layouts.shard import shard
from costmodels.models.catalog import load_model
from costmodels.operators.operators import token_operators
from costmodels.tables.aic import LAYOUTS, AicChoice, aic_tables
from costmodels.tables.bundle import operator_tables
from costmodels.tables.families import Lack
from costmodels.tables.ideal import ideal_seconds
from costmodels.tables.kinds import KINDS, Precision, TableKind
from costmodels.tables.shapes import (
    LOOKUPS,
    AllReduceTable,
    DecodeAttentionTable,
    ElementwiseTable,
    ExpertShape,
    GemmTable,
    GroupedGemmTable,
    Heads,
    PrefillAttentionTable,
)
from costmodels.tables.store import load_table, save_table
from costmodels.tables.table import OperatorTable, TableMeta, operator_table
from sim.errors import ScenarioError
from tests.costmodels.tables.leave_one_out import leave_one_out

Array = NDArray[np.float64]

H200 = load_gpu("H200")
HEADS = Heads(q_heads=32, kv_heads=8, head_dim=128)


def meta(kind: TableKind) -> TableMeta:
    return TableMeta(
        kind=kind,
        gpu="H200-SXM",
        engine="vllm",
        engine_version="0.24.0",
        kernel="test",
        date="2026-01-01",
        attribution="made up here",
        licence="none",
    )


def made_table(kind: TableKind, grid: dict[str, list[float]], slope: float = 0.1) -> OperatorTable:
    """A full grid whose utilisation is a power law of every axis and near column."""
    axes = np.meshgrid(*grid.values(), indexing="ij")
    columns = {name: axis.ravel().astype(np.float64) for name, axis in zip(grid, axes, strict=True)}
    varying = [name for name in (*KINDS[kind].near, *KINDS[kind].axes) if name != "prefix_tokens"]
    log_u = np.log(0.2) + slope * sum(np.log(columns[name]) for name in varying) / len(varying)
    ideal_s = ideal_seconds(kind, columns, H200, Precision())
    return operator_table(meta(kind), columns | {"seconds": ideal_s / np.exp(log_u)})


SIZES = [1024.0, 2048.0, 4096.0, 8192.0]
ROWS = [2.0**p for p in range(14)]
GEMM = made_table("gemm", {"n": SIZES, "k": SIZES, "m": ROWS})
ATTENTION = {"head_dim": [128.0], "window": [0.0], "q_heads": [16.0, 32.0], "kv_heads": [4.0, 8.0]}
DECODE = made_table(
    "decode_attention",
    ATTENTION | {"seqs": [1.0, 8.0, 64.0, 256.0], "context_tokens": [128.0, 1024.0, 8192.0]},
)
PREFILL = {"seqs": [1.0, 4.0, 16.0], "new_tokens": [128.0, 1024.0, 8192.0]}
ALL_REDUCE = made_table(
    "all_reduce", {"ranks": [2.0, 8.0], "bytes": [2.0**p for p in range(8, 28)]}
)


def changed(table: OperatorTable, row: int) -> OperatorTable:
    seconds = table.seconds.copy()
    seconds[row] = np.nextafter(seconds[row], 1.0)
    return replace(table, columns={**table.columns, "seconds": seconds})


@pytest.mark.parametrize("table", [GEMM, DECODE, ALL_REDUCE], ids=lambda t: t.meta.kind)
def test_a_saved_table_is_read_back_the_same(table: OperatorTable, tmp_path: Path) -> None:
    table = replace(table, error=leave_one_out(table))
    save_table(table, tmp_path / "t.parquet")
    read = load_table(tmp_path / "t.parquet")
    assert (read.meta, read.error) == (table.meta, table.error)
    assert read.content_hash == table.content_hash
    for name, column in table.columns.items():
        np.testing.assert_array_equal(read.columns[name], column)


def test_the_hash_changes_with_any_one_timing_and_with_the_metadata() -> None:
    hashes = {GEMM.content_hash, replace(GEMM, meta=replace(GEMM.meta, kernel="x")).content_hash}
    hashes |= {changed(GEMM, row).content_hash for row in range(len(GEMM))}
    assert len(hashes) == len(GEMM) + 2


def test_the_hash_does_not_depend_on_the_order_of_rows() -> None:
    order = np.random.default_rng(0).permutation(len(GEMM))
    shuffled = {name: column[order] for name, column in GEMM.columns.items()}
    assert operator_table(GEMM.meta, shuffled).content_hash == GEMM.content_hash


def rewritten(path: Path, about: dict[str, object] | None = None, row: int | None = None) -> None:
    """Change a file behind the format's back."""
    content = pq.read_table(path)
    metadata = dict(content.schema.metadata)
    frame = content.to_pandas()
    if row is not None:
        frame.loc[row, "seconds"] *= 1 + 1e-9
    if about is not None:
        known = json.loads(metadata[b"fleetcast_operator_table"])
        known["meta"] |= about
        metadata[b"fleetcast_operator_table"] = json.dumps(known).encode()
    table = content.from_pandas(frame, preserve_index=False)
    pq.write_table(table.replace_schema_metadata(metadata), path)


def test_a_tampered_file_is_refused_with_the_field_and_what_is_right(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    cases: list[tuple[dict[str, object] | None, int | None, str]] = [
        (None, 17, r"t\.parquet: content_hash is \w{64}, but the content has \w{64}"),
        ({"gpu": "H100-SXM"}, None, r"t\.parquet: content_hash"),
        ({"gpu": "H300"}, None, r"t\.parquet: unknown GPU 'H300'"),
        ({"unit": "ms"}, None, r"t\.parquet: unit is 'ms', not 's'"),
        ({"kind": "conv"}, None, r"t\.parquet: kind is 'conv', not one of gemm"),
        ({"format_version": 9}, None, r"t\.parquet: format_version is 9, not 2"),
        ({"precision": {"activations": "int3"}}, None, r"activations is 'int3', not one of bfloat"),
    ]
    for about, row, message in cases:
        save_table(GEMM, path)
        rewritten(path, about, row)
        with pytest.raises(ScenarioError, match=message):
            load_table(path)
    path.write_text("no parquet")
    with pytest.raises(ScenarioError, match=r"t\.parquet: cannot be read as parquet"):
        load_table(path)
    pq.write_table(pq.read_table(save_plain(tmp_path)), path)
    with pytest.raises(ScenarioError, match="not an operator table"):
        load_table(path)


def save_plain(folder: Path) -> Path:
    path = folder / "plain.parquet"
    save_table(GEMM, path)
    pq.write_table(pq.read_table(path).replace_schema_metadata({}), path)
    return path


def test_columns_that_cannot_be_a_table_are_refused() -> None:
    def with_column(name: str, value: float) -> dict[str, Array]:
        return {**GEMM.columns, name: np.full(len(GEMM), value)}

    cases = [
        (with_column("seconds", 0.0), "seconds must be finite and above 0"),
        (with_column("m", float("nan")), "m must be finite"),
        (with_column("m", 4.0), "is there twice"),
        ({n: c for n, c in GEMM.columns.items() if n != "k"}, r"columns are \['m', 'n', 'seconds'"),
    ]
    for columns, message in cases:
        with pytest.raises(ScenarioError, match=message):
            operator_table(GEMM.meta, columns)


@pytest.mark.parametrize("table", [GEMM, DECODE, ALL_REDUCE], ids=lambda t: t.meta.kind)
def test_at_its_points_a_table_answers_what_was_measured(table: OperatorTable) -> None:
    noise = np.random.default_rng(1).uniform(0.5, 2.0, len(table))
    noisy = operator_table(table.meta, {**table.columns, "seconds": table.seconds * noise})
    seconds, labels = LOOKUPS[table.meta.kind](noisy).columns_seconds(noisy.columns)
    np.testing.assert_allclose(seconds, noisy.seconds, rtol=1e-12)
    assert set(labels) == {"measured"}


def test_labels_say_inside_or_outside_the_measured_range() -> None:
    gemm = GemmTable(GEMM)
    rows = np.array([1.0, 3.0, 1024.0, 1500.0, 8192.0, 8193.0])
    expected = ["measured", "fitted", "measured", "fitted", "measured", "extrapolated"]
    assert gemm.seconds(rows, 2048, 4096)[1].tolist() == expected
    assert gemm.seconds(rows, 3000, 4096)[1].tolist() == ["fitted"] * 5 + ["extrapolated"]
    assert set(gemm.seconds(rows, 3000, 16384)[1]) == {"extrapolated"}
    decode = DecodeAttentionTable(DECODE)
    seqs, context = np.array([8.0, 9.0, 9.0, 300.0]), np.array([1024.0, 300.0, 64.0, 1024.0])
    expected = ["measured", "fitted", "extrapolated", "extrapolated"]
    assert decode.seconds(seqs, context, HEADS)[1].tolist() == expected


def test_a_ragged_edge_is_outside_and_holds_its_utilisation() -> None:
    """Long contexts measured with few sequences only, as on any device with finite memory."""
    is_kept = DECODE.columns["seqs"] * DECODE.columns["context_tokens"] <= 8 * 8192
    kept = {name: column[is_kept] for name, column in DECODE.columns.items()}
    lookup = DecodeAttentionTable(operator_table(DECODE.meta, kept))
    seqs, contexts = np.full(2, 64.0), np.array([1024.0, 8192.0])
    seconds, labels = lookup.seconds(seqs, contexts, HEADS)
    assert labels.tolist() == ["measured", "extrapolated"]
    shape = {**{k: np.full(2, v) for k, v in vars_of(HEADS).items()}, "seqs": seqs}
    ideal_s = ideal_seconds(
        "decode_attention", shape | {"context_tokens": contexts}, H200, Precision()
    )
    assert seconds[1] / seconds[0] == pytest.approx(ideal_s[1] / ideal_s[0])


def vars_of(heads: Heads) -> dict[str, float]:
    return {
        name: float(getattr(heads, name)) for name in ("q_heads", "kv_heads", "head_dim", "window")
    }


@pytest.mark.parametrize("inner", [4096, 3000])
def test_gemm_time_is_a_step_function_of_rows_where_the_table_says_so(inner: int) -> None:
    rows = [1.0, 8, 16, 17, 24, 32, 33, 48, 64, 65, 80, 128, 129, 192, 256, 512, 1024]
    table = made_table("gemm", {"n": SIZES, "k": SIZES, "m": rows})
    tiles = np.maximum(16, 2 ** np.ceil(np.log2(table.columns["m"])))
    weights = table.columns["n"] * table.columns["k"]
    gemm = GemmTable(operator_table(table.meta, {**table.columns, "seconds": weights * tiles}))
    for below, above in ((16, 32), (32, 64), (64, 128)):
        held = gemm.seconds(np.arange(below + 1.0, above + 1), inner, 4096)[0]
        assert np.ptp(held) < 1e-3 * held[0]
        assert gemm.seconds(np.array([float(below)]), inner, 4096)[0][0] < 0.95 * held[0]
    # A table that grows evenly has no steps.
    smooth = GemmTable(affine(table)).seconds(np.arange(17.0, 33), inner, 4096)[0]
    assert len(np.unique(smooth)) == 16


def test_more_work_never_takes_less_time_where_the_points_say_so() -> None:
    rows = np.arange(0.0, 20000.0)
    gemm = GemmTable(made_table("gemm", {"n": SIZES, "k": SIZES, "m": ROWS}, slope=0))
    for inner, outer in ((4096, 4096), (3000, 5000)):
        seconds = gemm.seconds(rows, inner, outer)[0]
        assert seconds[0] == 0
        assert np.all(np.diff(seconds) > -1e-9 * seconds[1:])
    context = np.geomspace(100, 20000, 500)
    seconds = DecodeAttentionTable(DECODE).seconds(np.full(500, 20.0), context, HEADS)[0]
    assert np.all(np.diff(seconds) > 0)


def test_beyond_the_last_point_time_grows_as_the_roofline() -> None:
    seconds = GemmTable(GEMM).seconds(np.array([8192.0, 32768.0]), 4096, 4096)[0]
    assert seconds[1] == pytest.approx(4 * seconds[0], rel=1e-12)
    last = ALL_REDUCE.columns["bytes"].max()
    seconds = AllReduceTable(ALL_REDUCE).seconds(np.array([last, 10 * last]), 8)[0]
    assert seconds[1] == pytest.approx(10 * seconds[0], rel=1e-12)


def affine(table: OperatorTable) -> OperatorTable:
    """Return a table of these shapes, each with a fixed time and half the roofline's speed."""
    ideal_s = ideal_seconds(table.meta.kind, table.columns, H200, Precision())
    return operator_table(table.meta, {**table.columns, "seconds": 3e-6 + 2 * ideal_s})


def test_nothing_takes_less_than_the_shortest_kernel_measured() -> None:
    table = affine(made_table("elementwise", {"bytes_per_row": [4096.0, 16384.0], "rows": ROWS}))
    lookup = ElementwiseTable(table)
    seconds, labels = lookup.seconds(np.array([1.0, 4096.0]), 64.0)
    assert labels.tolist() == ["extrapolated"] * 2
    assert seconds[0] == table.seconds.min() > 3e-6
    assert seconds[1] < lookup.seconds(np.array([4096.0]), 4096.0)[0][0]


def test_between_points_time_is_linear_in_the_roofline() -> None:
    rows = np.array([300.0, 700.0, 3000.0])
    columns = {"m": rows, "n": np.full(3, 4096.0), "k": np.full(3, 4096.0)}
    expected = 3e-6 + 2 * ideal_seconds("gemm", columns, H200, Precision())
    found = GemmTable(affine(GEMM)).seconds(rows, 4096, 4096)[0]
    np.testing.assert_allclose(found, expected)
    shape = {**{k: np.full(3, v) for k, v in vars_of(HEADS).items()}}
    shape |= {"seqs": np.array([3.0, 20, 200]), "context_tokens": np.array([300.0, 3000, 5000])}
    expected = 3e-6 + 2 * ideal_seconds("decode_attention", shape, H200, Precision())
    decode = DecodeAttentionTable(affine(DECODE))
    found = decode.seconds(shape["seqs"], shape["context_tokens"], HEADS)[0]
    np.testing.assert_allclose(found, expected)


def test_leaving_out_finds_a_smooth_table_good_and_a_rough_one_bad() -> None:
    smooth = affine(made_table("gemm", {"n": SIZES, "k": SIZES, "m": ROWS[7:]}))
    error = leave_one_out(smooth)
    assert error.point_p90 is not None
    assert error.point_p90 < 1e-9
    assert error.curve_median is not None
    assert error.curve_median < 0.02
    assert 0 < error.num_points < len(smooth)
    noise = np.random.default_rng(2).uniform(0.8, 1.2, len(smooth))
    rough = operator_table(smooth.meta, {**smooth.columns, "seconds": smooth.seconds * noise})
    rough_error = leave_one_out(rough)
    assert rough_error.point_median is not None
    assert 0.03 < rough_error.point_median < 0.3
    assert leave_one_out(rough) == rough_error
    assert leave_one_out(ALL_REDUCE).curve_median is None


@pytest.mark.parametrize("prefixes", [[0.0], [0.0, 1024.0, 4096.0]])
def test_prefill_sums_stand_for_a_batch_of_equal_prompts(prefixes: list[float]) -> None:
    prefill = PrefillAttentionTable(
        made_table("prefill_attention", ATTENTION | PREFILL | {"prefix_tokens": prefixes})
    )
    seqs, new, prefix = (
        np.array([4.0, 2.0]),
        np.array([1024.0, 500.0]),
        np.array([0.0, prefixes[-1]]),
    )
    by_shape, labels = prefill.seconds(seqs, new, prefix, HEADS)
    tokens = seqs * new
    pairs, kv_tokens = tokens * (prefix + (new + 1) / 2), seqs * (new + prefix)
    by_sums, sum_labels = prefill.prefill_seconds(tokens, pairs, kv_tokens, HEADS)
    np.testing.assert_allclose(by_sums, by_shape, rtol=1e-9)
    assert labels.tolist() == sum_labels.tolist() == ["measured", "fitted"]
    assert prefill.prefill_seconds(np.zeros(1), np.zeros(1), np.zeros(1), HEADS)[0].tolist() == [0]


def test_a_prefix_no_table_measured_is_outside_and_costs_its_pairs() -> None:
    prefill = PrefillAttentionTable(
        made_table("prefill_attention", ATTENTION | PREFILL | {"prefix_tokens": [0.0]}, slope=0)
    )
    seconds, labels = prefill.seconds(
        np.ones(2), np.full(2, 1024.0), np.array([0.0, 1024.0]), HEADS
    )
    assert labels.tolist() == ["measured", "extrapolated"]
    assert seconds[1] / seconds[0] == pytest.approx(1536.5 / 512.5)


def test_decode_sums_are_spread_evenly() -> None:
    decode = DecodeAttentionTable(DECODE)
    seqs, context = np.array([8.0, 20.0]), np.array([1024.0, 700.0])
    expected = decode.seconds(seqs, context, HEADS)[0]
    np.testing.assert_array_equal(decode.decode_seconds(seqs, seqs * context, HEADS)[0], expected)


def test_heads_that_were_never_measured_are_refused_with_those_that_were() -> None:
    heads = replace(HEADS, head_dim=96)
    with pytest.raises(
        ScenarioError, match=r"nothing at head_dim 96, window 0; it has head_dim 128"
    ):
        DecodeAttentionTable(DECODE).seconds(np.ones(1), np.ones(1), heads)


def test_a_curve_of_8193_rows_takes_milliseconds() -> None:
    gemm = GemmTable(GEMM)
    rows = np.arange(8193.0)
    gemm.seconds(rows, 3000, 5000)
    start = time.perf_counter()
    for outer in (5000, 6000, 7000):
        gemm.seconds(rows, 3000, outer)
    assert time.perf_counter() - start < 0.15


def test_a_bundle_prices_the_operators_of_a_step() -> None:
    slice_ = shard(load_model("meta-llama/Llama-3.1-8B"), 2)
    tables = operator_tables([GEMM, DECODE, ALL_REDUCE])
    rows = np.array([0.0, 1.0, 200.0])
    operators = {op.name: op for op in token_operators(slice_, rows)}
    found = {name: tables.seconds(op, slice_) for name, op in operators.items()}
    down = found["down"]
    assert down is not None
    np.testing.assert_allclose(down[0], 32 * GemmTable(GEMM).seconds(rows, 7168, 4096)[0])
    reduced = found["all_reduce"]
    assert reduced is not None
    by_table = AllReduceTable(ALL_REDUCE).seconds(2 * 4096 * rows, 2)[0]
    np.testing.assert_allclose(reduced[0], 64 * by_table)
    assert found["norms"] is None
    assert [source["label"] for source in tables.sources()] == ["measured"] * 3
    fp8 = replace(
        GEMM, meta=replace(GEMM.meta, precision=Precision(activations="fp8", weights="fp8"))
    )
    down_fp8 = replace(operators["down"], peak="fp8_flop_per_s", weights="fp8")
    with pytest.raises(Lack, match="no gemm table with activations in fp8, weights in fp8"):
        tables.find(down_fp8, slice_)
    priced = operator_tables([GEMM, fp8]).seconds(down_fp8, slice_)
    assert priced is not None
    # Points are the measured ones; between them the bound has fp8's peak.
    assert 0 < priced[0][2] < 1.1 * down[0][2]
    with pytest.raises(ScenarioError, match="two gemm tables"):
        operator_tables([GEMM, GEMM])
    other = replace(ALL_REDUCE, meta=replace(ALL_REDUCE.meta, gpu="H100-SXM"))
    with pytest.raises(ScenarioError, match="several GPUs"):
        operator_tables([GEMM, other])


def test_of_kernels_that_do_the_same_the_fastest_serves() -> None:
    slow = operator_table(GEMM.meta, {**GEMM.columns, "seconds": 2 * GEMM.seconds})
    slow = replace(slow, meta=replace(GEMM.meta, kernel="slow"))
    slice_ = shard(load_model("meta-llama/Llama-3.1-8B"), 1)
    down = {op.name: op for op in token_operators(slice_, np.array([64.0]))}["down"]
    for tables in ([GEMM, slow], [slow, GEMM]):
        found = operator_tables(tables).seconds(down, slice_)
        assert found is not None
        assert found.seconds == 32 * GemmTable(GEMM).seconds(np.array([64.0]), 14336, 4096)[0]


def test_what_the_engine_runs_serves_before_what_is_faster() -> None:
    slow = operator_table(GEMM.meta, {**GEMM.columns, "seconds": 2 * GEMM.seconds})
    slow = replace(slow, meta=replace(GEMM.meta, kernel="slow"))
    for tables in ([GEMM, slow], [slow, GEMM]):
        found = operator_tables(tables, {"gemm": "slow"})
        assert [one.meta.kernel for one in found.tables()] == ["slow", GEMM.meta.kernel]


def test_without_the_package_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(resources, "files", missing)
    with pytest.raises(ScenarioError, match=r"pip install 'fleetcast\[aic\]'"):
        aic_tables("H200")


@pytest.fixture(name="needs_aic")
def _needs_aic() -> None:
    pytest.importorskip("aiconfigurator_core", reason="pip install 'fleetcast[aic]' to test it")


@pytest.mark.usefixtures("needs_aic")
def test_aiconfigurators_tables_of_h200_are_plausible() -> None:
    tables = aic_tables("H200")
    assert set(tables) == set(LAYOUTS)
    rows, work = np.array([8192.0]), 2 * 8192.0**3
    seconds, label = GemmTable(tables["gemm"]).seconds(rows, 8192, 8192)
    assert label.tolist() == ["measured"]
    # The card of the ground truth: 753 TFLOP/s at this shape.
    assert 0.85 * 753e12 < work / seconds[0] < 1.15 * 753e12
    fp8 = aic_tables("H200", AicChoice(gemm_mode="fp8", kv="fp8"), ["gemm", "decode_attention"])
    seconds = GemmTable(fp8["gemm"]).seconds(rows, 8192, 8192)[0]
    assert 0.9 * 1354e12 < work / seconds[0] < 1.1 * 1354e12
    assert fp8["decode_attention"].meta.precision == Precision(kv="fp8")
    # 128 sequences of 4,096 tokens stream their KV at 60 to 100% of the bandwidth.
    seqs, context = np.array([128.0]), np.array([4096.0])
    seconds = DecodeAttentionTable(tables["decode_attention"]).seconds(seqs, context, HEADS)[0]
    assert 0.6 < seqs[0] * context[0] * 4096 / H200.hbm_bytes_per_s / seconds[0] < 1
    # A large all-reduce runs at 60 to 110% of the link's ring bound.
    seconds = AllReduceTable(tables["all_reduce"]).seconds(np.array([2.0**28]), 8)[0]
    assert H200.fabric_bytes_per_s is not None
    assert 0.6 < 2 * 7 / 8 * 2**28 / H200.fabric_bytes_per_s / seconds[0] < 1.1
    for table in tables.values():
        source = table.source()["source"]
        assert "aiconfigurator-core 0.12" in source
        assert "Apache-2.0, NVIDIA" in source


@pytest.mark.usefixtures("needs_aic")
def test_aiconfigurators_moe_tables_differ_by_workload() -> None:
    experts = ExpertShape(hidden=2048, inter=768, top_k=8, num_experts=128)
    seconds = {}
    for workload in ("balanced", "power_law_1.2"):
        table = aic_tables("H200", AicChoice(workload=workload), ["grouped_gemm"])["grouped_gemm"]
        assert table.meta.variant == workload
        seconds[workload] = GroupedGemmTable(table).seconds(np.array([16.0]), experts)[0][0]
    # Sixteen tokens reach all 128 experts where each is given the same.
    assert seconds["balanced"] > 1.5 * seconds["power_law_1.2"]


@pytest.mark.usefixtures("needs_aic")
def test_aiconfigurators_gaps_are_filled_backwards_or_named() -> None:
    assert aic_tables("L40S", kinds=["all_reduce"])["all_reduce"].meta.engine_version == "0.22.0"
    assert aic_tables("A100", kinds=["gemm"])["gemm"].meta.engine_version == "0.14.0"
    cases = [
        ("A100", AicChoice(gemm_mode="fp8"), "no gemm_dtype 'fp8'; it has bfloat16"),
        ("H200", AicChoice(version="0.1.0"), r"up to 0\.1\.0 in .*h200_sxm; it has 0\.24\.0"),
        ("H200", AicChoice(backend="tgi"), "backend 'tgi' is not one of vllm, sglang, trtllm"),
        ("T4", AicChoice(), "no operators of T4; it has A100-SXM-80GB"),
    ]
    for gpu, choice, message in cases:
        with pytest.raises(ScenarioError, match=message):
            aic_tables(gpu, choice, ["gemm"])
