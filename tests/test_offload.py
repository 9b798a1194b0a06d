"""Offloading: the slowest of transfers and computing, and where more of anything must not help."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.models import load_model
from costmodels.offload import (
    Placement,
    Shares,
    decode_layer,
    offloaded_tokens_per_s,
    prefill_layer,
    wide_area_step_s,
)
from sim.errors import ScenarioError
from tests.published.flexgen import ON_DEVICE, ON_DISK, ON_HOST, T4

OPT = load_model("opt-30b")


def test_streamed_weights_are_the_floor_of_a_step() -> None:
    """ZeRO-Inference: a layer's weights over the host link, whatever the small batch."""
    placement = Placement(weights=ON_HOST, state=ON_DEVICE, batch=1)
    layer = decode_layer(OPT, T4, placement, 512)
    assert layer.seconds(overlap=True) == layer.to_device
    a_layer_bytes = 12 * 7168**2 * 2
    assert layer.to_device == pytest.approx(a_layer_bytes / 12e9, rel=1e-3)
    # A batch large enough hides it behind computing.
    large = decode_layer(OPT, T4, replace(placement, batch=8192), 1)
    assert large.device > large.to_device


def test_a_block_of_batches_shares_the_weights() -> None:
    one = Placement(weights=ON_HOST, state=ON_HOST, batch=8)
    many = replace(one, batches=6)
    rate = [offloaded_tokens_per_s(OPT, T4, placement, 64, 32) for placement in (one, many)]
    assert rate[1] > 3 * rate[0]
    weights_s = decode_layer(OPT, T4, replace(one, state=ON_DEVICE), 64).to_device
    assert decode_layer(OPT, T4, replace(many, state=ON_DEVICE), 64).to_device < 1.1 * weights_s


def test_the_disk_is_read_for_what_is_on_it_alone() -> None:
    for weights, state in ((ON_DEVICE, ON_DEVICE), (ON_HOST, ON_HOST)):
        assert (
            decode_layer(OPT, T4, Placement(weights=weights, state=state, batch=4), 512).disk == 0
        )
    on_disk = decode_layer(OPT, T4, Placement(weights=ON_DISK, state=ON_DEVICE, batch=4), 512)
    assert on_disk.disk == pytest.approx(12 * 7168**2 * 2 / 2e9, rel=1e-3)


@settings(max_examples=50)
@given(
    device=st.floats(0, 1),
    host=st.floats(0, 1),
    batch=st.integers(1, 64),
    context=st.integers(1, 2000),
    more=st.integers(1, 2000),
    bits=st.sampled_from([2.0, 4.5, 8.0]),
    host_attention=st.booleans(),
)
def test_more_work_takes_no_less_and_fewer_bits_move_no_more(
    device: float,
    host: float,
    batch: int,
    context: int,
    more: int,
    bits: float,
    host_attention: bool,
) -> None:
    shares = Shares(device, (1 - device) * host)
    wide = Placement(weights=shares, state=shares, batch=batch, host_attention=host_attention)
    base = decode_layer(OPT, T4, wide, context)
    for larger in (
        decode_layer(OPT, T4, wide, context + more),
        decode_layer(OPT, T4, replace(wide, batch=batch + more), context),
    ):
        assert all(a <= b * (1 + 1e-9) for a, b in zip(base, larger, strict=True))
    assert all(
        a <= b * (1 + 1e-9)
        for a, b in zip(
            prefill_layer(OPT, T4, wide, context),
            prefill_layer(OPT, T4, wide, context + more),
            strict=True,
        )
    )
    narrow = decode_layer(OPT, T4, replace(wide, weight_bits=bits, state_bits=bits), context)
    assert narrow.to_device <= base.to_device
    assert narrow.disk <= base.disk
    assert base.seconds(overlap=True) <= base.seconds(overlap=False)


def test_machines_far_apart_add_their_round_trips() -> None:
    """Petals: BLOOM-176B over three machines: compute, and four hops of half a round trip."""
    step = wide_area_step_s([0.1, 0.1, 0.1], 0.1, 14336 * 2, 12.5e6)
    assert step == pytest.approx(0.3 + 4 * (0.05 + 28672 / 12.5e6))
    near = wide_area_step_s([0.1, 0.1, 0.1], 0.005, 14336 * 2, 12.5e6)
    assert near < step


def test_what_cannot_be_placed_is_refused() -> None:
    with pytest.raises(ScenarioError, match="add up"):
        Placement(weights=Shares(0.8, 0.4), state=ON_HOST, batch=1)
    with pytest.raises(ScenarioError, match="grouped-query"):
        decode_layer(
            load_model("kimi-k3"), T4, Placement(weights=ON_HOST, state=ON_HOST, batch=1), 1
        )
