"""Devices, efficiency constants and engine profiles: values, labels, names."""

from __future__ import annotations

import pytest

from costmodels.engines.profile import (
    capture_up_to,
    load_profile,
    nearest_profile,
    padded_size,
    profile_names,
    scale_host,
)
from costmodels.hardware.efficiency import load_efficiency
from costmodels.hardware.gpus import gpu_names, load_gpu
from sim.errors import ScenarioError
from sim.evidence import LABELS, Evidence, weakest


@pytest.mark.parametrize(
    ("name", "tflops", "gb", "gb_per_s"),
    [
        ("a100", 312, None, 2039),
        ("h100", 989, None, 3350),
        ("H200-SXM", 989, None, 4800),
        ("h20", 148, 96, 4000),
        ("l4", 121, 24, 300),
        ("mi300x", 1307, 192, 5300),
        ("tpu-v6e", 918, 32, 1638),
    ],
)
def test_device_numbers(name: str, tflops: float, gb: int | None, gb_per_s: float) -> None:
    gpu = load_gpu(name)
    assert gpu.bf16_flop_per_s == tflops * 1e12
    assert gpu.hbm_bytes_per_s == gb_per_s * 1e9
    if gb is not None:
        assert gpu.hbm_bytes == gb * 10**9


def test_h200_memory_is_what_the_device_reports() -> None:
    gpu = load_gpu("h200")
    assert gpu.hbm_bytes == 150_109_880_320
    assert gpu.source_of("hbm_bytes")["label"] == "measured"
    assert gpu.source_of("bf16_flop_per_s")["label"] == "datasheet"


def test_every_device_is_whole_and_has_evidence() -> None:
    for name in gpu_names():
        gpu = load_gpu(name)
        assert isinstance(gpu.hbm_bytes, int)
        assert gpu.bf16_flop_per_s > 1e13
        assert gpu.hbm_bytes_per_s > 1e11
        assert gpu.hbm_bytes > 10**10
        for evidence in gpu.evidence.values():
            assert evidence.label in LABELS
            assert evidence.source


def test_recalled_numbers_are_assumed() -> None:
    assert load_gpu("a10g").source_of("bf16_flop_per_s")["label"] == "assumed"
    mi300x = load_gpu("mi300x")
    assert mi300x.source_of("bf16_flop_per_s")["label"] == "assumed"
    assert mi300x.source_of("hbm_bytes_per_s")["label"] == "datasheet"


def test_unknown_gpu_lists_near_matches() -> None:
    with pytest.raises(ScenarioError, match=r"unknown GPU 'h220'.*H200-SXM"):
        load_gpu("h220")


def test_efficiency_is_fitted_where_measured_only() -> None:
    h200, h100, a100 = (load_efficiency(load_gpu(name)) for name in ("h200", "h100", "a100"))
    assert h200.label_of("gemm_memory") == "fitted"
    assert h200.label_of("all_reduce_bandwidth") == "reported"
    datasheet = load_efficiency(load_gpu("h200"), generic_only=True)
    assert datasheet.label_of("all_reduce_bandwidth") == "assumed"
    assert h100.label_of("gemm_memory") == "extrapolated"
    assert h100.gemm_memory == h200.gemm_memory
    assert a100.label_of("gemm_memory") == "reported"
    assert all(0 <= source["value"] <= 1e3 for source in a100.sources())  # type: ignore[operator]


def test_weakest_label() -> None:
    assert weakest(["fitted", "assumed", "datasheet"]) == "assumed"
    assert weakest([]) == "measured"
    with pytest.raises(ValueError, match="unknown evidence label"):
        Evidence(label="guessed", source="")


def test_graph_sizes_of_vllm() -> None:
    sizes = load_profile().graph_sizes
    assert sizes[:6] == (1, 2, 4, 8, 16, 24)
    assert sizes[-2:] == (496, 512)
    assert len(sizes) == 51
    assert [padded_size(n, sizes) for n in (3, 9, 256, 257, 512, 513)] == [
        4,
        16,
        256,
        272,
        512,
        513,
    ]
    assert load_profile().graphs_for(16)[-1] == 32


def test_host_speed_factor_scales_host_terms_alone() -> None:
    plain, slow = load_profile(), scale_host(load_profile(), 1.5)
    assert slow.schedule_base_s == 1.5 * plain.schedule_base_s
    assert slow.experts_call_s == 1.5 * plain.experts_call_s
    assert slow.runtime_bytes == plain.runtime_bytes
    assert slow.graph_sizes == plain.graph_sizes


@pytest.mark.parametrize("factor", [-1.0, float("nan"), float("inf")])
def test_bad_host_speed_factor(factor: float) -> None:
    with pytest.raises(ScenarioError, match="host_speed_factor"):
        scale_host(load_profile(), factor)


VLLM = ("vllm-0.25", "vllm-0.19", "vllm-0.13", "vllm-0.16", "vllm-0.11", "vllm-0.10")


@pytest.mark.parametrize(
    ("profile", "version", "found", "is_exact"),
    [
        ("vllm-0.25", "0.25.1", "vllm-0.25", True),
        ("vllm-0.25", "v0.11.2", "vllm-0.11", True),
        ("vllm-0.25", "0.15.1", "vllm-0.16", True),
        ("vllm-0.25", "0.17.0rc1.dev98+g96ebcaa3a", "vllm-0.19", True),
        ("vllm-0.25", "0.21.0", "vllm-0.19", False),
        ("vllm-0.25", "0.26.0", "vllm-0.25", False),
        ("vllm-0.25", "0.8.5", "vllm-0.10", False),
        ("sglang", "0.5.18", "sglang-0.5", True),
    ],
)
def test_a_version_takes_the_nearest_profile_and_says_so(
    profile: str, version: str, found: str, is_exact: bool
) -> None:
    name, note = nearest_profile(profile, version)
    assert name == found
    assert (not note) == is_exact
    assert is_exact or (version in note and found in note)


def test_profile_names_and_sources() -> None:
    assert profile_names() == [*VLLM, "sglang-0.5", "trtllm-1.2"]
    assert load_profile("vLLM").name == "vllm-0.25"
    with pytest.raises(ScenarioError, match="unknown engine profile"):
        load_profile("vllm-9")
    for source in load_profile().sources():
        assert source["label"] in LABELS
        assert source["source"]


def test_a_profile_says_what_differs_from_the_one_it_extends() -> None:
    newest, newer, old, oldest = (load_profile(f"vllm-0.{minor}") for minor in (25, 13, 11, 10))
    assert [one.async_scheduling for one in (newest, newer, old, oldest)] == [True, *3 * [False]]
    assert [one.full_graphs for one in (newest, newer, old, oldest)] == [*3 * [True], False]
    assert (newest.sparse_latent_cache, oldest.sparse_latent_cache) == ("auto", "fp8_ds_mla")
    # Host times are the newest's, and say that nobody measured them with this version.
    assert oldest.driver_s == newest.driver_s
    assert (newest.host_evidence.label, oldest.host_evidence.label) == ("fitted", "extrapolated")
    assert newer.graph_sizes == newest.graph_sizes
    assert old.graph_sizes[-2:] == (504, 512)
    assert load_profile("vllm-0.11.0") == old
    # Asynchronous scheduling became the default in 0.14; the profile of 0.17 takes 24 bytes less.
    later, recent = load_profile("vllm-0.16"), load_profile("vllm-0.19")
    assert later.async_scheduling
    assert recent.async_scheduling
    assert later.dense_sampler_bytes_per_logit == newer.dense_sampler_bytes_per_logit == 38
    assert recent.dense_sampler_bytes_per_logit == 14


def test_graphs_up_to_another_size() -> None:
    profile = load_profile()
    assert profile.graph_sizes[-2:] == (496, 512)
    assert capture_up_to(profile, 512) == profile
    assert capture_up_to(profile, 560).graph_sizes == (*profile.graph_sizes, 528, 544, 560)
    assert capture_up_to(profile, 16).graph_sizes == (1, 2, 4, 8, 16)
