"""Published kernels as curves: exact at the points, monotone between them, and explained by
mechanisms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.hardware.gemm_paths import PATHS, crossover_rows, gemm_seconds, path_peak
from costmodels.hardware.gpus import load_gpu
from costmodels.hardware.kernel_curves import attention_curve, attention_shares, fit_saturation
from sim.errors import ScenarioError
from tests.published.models.kernels import (
    compute_bound_rows,
    deepep_fixed_s,
    dequantisation_share,
    fused_attention_s,
    low_latency_all_to_all_s,
    unfused_attention_s,
)


@given(most=st.floats(0.1, 1e3), half=st.floats(1.0, 1e4), first=st.integers(1, 10_000))
def test_a_curve_goes_through_the_points_that_made_it(most: float, half: float, first: int) -> None:
    points = {n: most / (1 + half / n) for n in (first, 3 * first, 20 * first)}
    curve = fit_saturation(points)
    assert curve.at(7 * first) == pytest.approx(most / (1 + half / (7 * first)), rel=1e-6)
    with pytest.raises(ValueError, match="two points"):
        fit_saturation({first: most})


@given(tokens=st.integers(1, 10**6), more=st.integers(1, 10**6))
def test_longer_sequences_run_no_slower_and_never_beyond_the_peak(tokens: int, more: int) -> None:
    for generation in ("fa2", "fa3"):
        curve = attention_curve(generation)
        share, _ = curve.share(tokens)
        assert 0 < share <= curve.share(tokens + more)[0] < 1
    assert attention_curve("fa3").share(tokens)[0] > attention_curve("fa2").share(tokens)[0]


def test_labels_say_where_a_curve_was_measured() -> None:
    curve = attention_curve("fa3")
    assert curve.share(2048)[1] == "fitted"
    assert curve.share(2048, head_dim=64)[1] == "extrapolated"
    assert curve.share(100_000)[1] == "extrapolated"
    with pytest.raises(ScenarioError, match="attention kernel"):
        attention_curve("fa9")


def test_materialised_scores_cost_memory_traffic() -> None:
    """FlashAttention's gain over eager attention, with ten passes over the scores, heads of 64."""
    gpu = load_gpu("a100")
    shape = {"tokens": 1024, "batch": 64, "heads": 12, "head_dim": 64}
    low, high = attention_shares("fa1")
    fused = fused_attention_s(gpu, share=(low + high) / 2, **shape)
    unfused = unfused_attention_s(gpu, passes=10, **shape)
    # 7.6x was published for GPT-2, with dropout and mask in kernels of their own.
    assert 3 < unfused / fused < 8
    # The scores are quadratic, the work is too: twice the length is four times the time.
    longer = unfused_attention_s(gpu, **{**shape, "tokens": 2048})
    assert longer == pytest.approx(4 * unfused_attention_s(gpu, **shape), rel=0.05)


@given(ranks=st.integers(2, 256), megabytes=st.floats(0.1, 100))
def test_all_to_all_grows_with_bytes_and_never_beats_its_wires(
    ranks: int, megabytes: float
) -> None:
    fixed_s = deepep_fixed_s()
    seconds = low_latency_all_to_all_s(ranks, megabytes * 1e6, fixed_s)
    assert seconds > fixed_s > 0
    assert low_latency_all_to_all_s(ranks, 2e6 * megabytes, fixed_s) > seconds
    with pytest.raises(ScenarioError, match="at least 2"):
        low_latency_all_to_all_s(1, 1.0, fixed_s)


def test_rows_from_which_a_gemm_is_compute_bound() -> None:
    """reference: A100 fp16 153 rows, W4A16 of 0.52 bytes a weight 40."""
    gpu = load_gpu("a100")
    assert round(compute_bound_rows(gpu.bf16_flop_per_s, 2, gpu.hbm_bytes_per_s)) == 153
    assert round(compute_bound_rows(gpu.bf16_flop_per_s, 0.52, gpu.hbm_bytes_per_s)) == 40


def test_weight_only_formats_gain_below_a_crossover_alone() -> None:
    gpu = load_gpu("a100")
    weight_only, plain = PATHS["W4A16"], PATHS["FP16"]
    rows = crossover_rows(weight_only, plain, gpu)
    assert rows is not None
    assert 40 < rows < 153
    for count in (1, rows - 1):
        ours = gemm_seconds(weight_only, gpu, count, 8192, 8192).total
        assert ours < gemm_seconds(plain, gpu, count, 8192, 8192).total
    assert gemm_seconds(weight_only, gpu, 1, 8192, 8192).total < 0.27 * (
        gemm_seconds(plain, gpu, 1, 8192, 8192).total
    )
    # On the 8-bit unit four-bit weights are the faster ones at any size.
    assert crossover_rows(PATHS["W4A8KV4"], plain, gpu) is None


def test_what_dequantising_takes_on_an_a100() -> None:
    """QServe: scaling partial sums of 4-bit products (Atom) takes up to 90% of the time."""
    gpu = load_gpu("a100")
    shares = {name: dequantisation_share(path, gpu, 4096) for name, path in PATHS.items()}
    assert shares["FP16"] == shares["W8A8"] == 0
    assert 0 < shares["W4A8KV4"] < shares["W4A8KV4 g128"] < 0.2
    assert 0.1 < shares["W4A16"] < 0.3
    assert 0.5 < shares["W4A4"] < 1.2
    flat = gemm_seconds(PATHS["W4A4 FlatQuant"], gpu, 4096, 8192, 8192)
    assert 0 < flat.transform < 0.2 * flat.multiply
    assert path_peak(PATHS["W4A4"], gpu) == 2 * 624e12


@given(rows=st.integers(1, 5000), more=st.integers(1, 5000), name=st.sampled_from(list(PATHS)))
def test_more_rows_take_no_less(rows: int, more: int, name: str) -> None:
    gpu, path = load_gpu("l40s"), PATHS[name]
    fewer = gemm_seconds(path, gpu, rows, 4096, 14336)
    larger = gemm_seconds(path, gpu, rows + more, 4096, 14336)
    assert all(a <= b for a, b in zip(fewer, larger, strict=True))
    assert fewer.total >= fewer.memory


def test_a_path_that_a_device_cannot_take_is_refused() -> None:
    with pytest.raises(ScenarioError, match="cores beside"):
        gemm_seconds(PATHS["W4A16"], load_gpu("tpu-v6e"), 1, 64, 64)
