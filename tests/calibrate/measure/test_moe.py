"""MoE layers: routings, kernels in Triton's interpreter, and their compilation for an H200."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.measure.kernels import grouped_gemm, moe_layer
from calibrate.measure.kernels.moe_routing import Experts, experts_of, route
from tests.calibrate.measure.triton_launches import Launch, fits, launches_of
from tests.properties.checkout import module_output

TOLERANCE = {"float32": 1e-4, "float16": 2e-3, "fp8": 0.2}
"""The interpreter's own rounding to fp8 is coarse; a wrong scale would show."""


def test_the_grid_covers_what_engines_run() -> None:
    cases = list(grouped_gemm.cases(False, "cuda"))
    assert len({case.key for case in cases}) == len(cases)
    for number, fewest in (("bfloat16", 9), ("fp8", 4)):
        shapes = [case.shape for case in cases if case.formats["weights"] == number]
        layers = {tuple(sorted((k, v) for k, v in s.items() if k not in VARIED)) for s in shapes}
        assert len(layers) == fewest
        for routing in ("balanced", "zipf"):
            tokens = {int(shape["tokens"]) for shape in shapes if shape["routing"] == routing}
            assert min(tokens) == 1
            assert max(tokens) >= 12288
    for case in cases:
        experts = experts_of(case.shape)
        assert experts.hidden % 64 == experts.inter % 64 == 0
        assert experts.local_experts * experts.ep == experts.num_experts


VARIED = ("tokens", "routing")


@pytest.mark.parametrize(
    ("routed", "local", "expected"),
    [(1, 8, 16), (128, 8, 16), (129, 8, 64), (768, 8, 64), (769, 8, 128), (10**6, 8, 128)],
)
def test_blocks_hold_what_an_expert_has(routed: int, local: int, expected: int) -> None:
    assert moe_layer.block_m(routed, local) == expected


@given(st.lists(st.integers(0, 300), min_size=1, max_size=64), st.sampled_from((16, 64, 128)))
def test_there_are_blocks_for_any_routing(loads: list[int], size: int) -> None:
    needed = sum(-(-load // size) for load in loads)
    assert moe_layer.max_blocks(sum(loads), len(loads), size) >= needed


layers = st.builds(
    lambda ep, local, top_k: Experts(
        hidden=64, inter=64, top_k=top_k, num_experts=ep * local * top_k, ep=ep
    ),
    st.sampled_from((1, 2, 8)),
    st.integers(1, 16),
    st.integers(1, 8),
)


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(layers, st.integers(1, 500), st.integers(0, 2**32), st.sampled_from(("balanced", "zipf")))
def test_tokens_reach_a_rank_with_an_average_load(
    experts: Experts, tokens: int, seed: int, routing: str
) -> None:
    torch = pytest.importorskip("torch")
    ids = route(experts, tokens, routing, "cpu", torch.Generator().manual_seed(seed))
    assert ids.dtype == torch.int32
    assert 1 <= len(ids) <= tokens
    assert (ids >= 0).any(1).all()
    assert ids.max() < experts.local_experts
    for row in ids.tolist():
        chosen = [expert for expert in row if expert >= 0]
        assert len(set(chosen)) == len(chosen)
    routed, mean = int((ids >= 0).sum()), tokens * experts.top_k / experts.ep
    if experts.ep == 1:
        assert routed == mean
        loads = ids.flatten().bincount(minlength=experts.num_experts)
        if routing == "balanced":
            assert loads.max() - loads.min() <= 1
    elif routing == "balanced":
        # Whole decks of cards are shared equally, and the last one is not whole.
        assert abs(routed - mean) <= experts.local_experts


@pytest.mark.slow
def test_popularity_falls_as_zipf_says() -> None:
    """With one expert a token, draws are the shares themselves: 1 / n over their sum."""
    torch = pytest.importorskip("torch")
    experts = Experts(hidden=64, inter=64, top_k=1, num_experts=8, ep=1)
    ids = route(experts, 200_000, "zipf", "cpu", torch.Generator().manual_seed(0))
    shares = ids.flatten().bincount().double() / len(ids)
    ranks = 1 / torch.arange(1, 9).double()
    assert torch.allclose(shares, ranks / ranks.sum(), atol=0.005)


@pytest.mark.slow
def test_torch_computes_the_layer_as_its_reference_does() -> None:
    pytest.importorskip("torch")
    for case in grouped_gemm.cases(False, "cpu"):
        prepared = grouped_gemm.prepare(case, "cpu", 1)
        assert prepared.error is not None
        assert prepared.error() < grouped_gemm.TOLERANCE["float32"]
        assert prepared.flops == grouped_gemm.work(case)[0]


@cache
def interpreted() -> dict[str, float]:
    """Errors by check, of MoE layers and of products with int4 weights."""
    errors: dict[str, float] = json.loads(module_output("tests.calibrate.measure.interpret_moe"))
    return errors


@pytest.mark.slow
def test_kernels_compute_layers_and_products() -> None:
    pytest.importorskip("triton")
    errors = interpreted()
    assert len(errors) == 20
    wrong = {
        name: error
        for name, error in errors.items()
        if not error <= next(TOLERANCE[number] for number in TOLERANCE if number in name)
    }
    assert not wrong


def launches(number: str) -> Iterator[Launch]:
    """Blocks of all sizes."""
    import torch

    generator = torch.Generator().manual_seed(1)
    for tokens in (1, 64, 512):
        experts = Experts(hidden=256, inter=256, top_k=8, num_experts=8, ep=1)
        weights = moe_layer.make_weights(experts, number, "cpu")
        ids = route(experts, tokens, "balanced", "cpu", generator)
        drawn = moe_layer.make_tokens(experts, ids, number, generator)
        layer = moe_layer.make_layer(experts, weights, number, tokens, drawn.routed)
        yield from launches_of(lambda: layer.launch(drawn))  # noqa: B023


@pytest.mark.slow
@pytest.mark.parametrize("number", ["bfloat16", "fp8"])
def test_kernels_compile_for_an_h200(number: str) -> None:
    pytest.importorskip("triton")
    distinct = {
        repr((each.name, each.arguments, each.num_warps)): each for each in launches(number)
    }
    products: list[Any] = []
    for launch in distinct.values():
        kernel = launch.compiled()
        assert fits(kernel), (launch.name, kernel.spill_bytes, kernel.shared_bytes)
        if launch.name == "grouped_matmul":
            rows = launch.arguments["block_m"]
            products.append(rows)
            expected = {"mma"} if rows == 16 else {"wgmma"}
            assert kernel.tensor_core_instructions == expected, launch.arguments
    assert sorted(products) == [16, 16, 64, 64, 128, 128]
