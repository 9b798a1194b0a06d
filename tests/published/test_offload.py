"""Offloading: a layer takes the slowest of transfers and computing, and more of the rest does
not help."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.models.catalog import load_model
from sim.errors import ScenarioError
from tests.published.flexgen import ON_DEVICE, ON_DISK, ON_HOST, T4
from tests.published.models.offload import (
    Placement,
    Shares,
    decode_layer,
    layer_seconds,
    offloaded_tokens_per_s,
    prefill_layer,
    wide_area_step_s,
)

OPT = load_model("opt-30b")


def test_streamed_weights_are_the_floor_of_a_step() -> None:
    """ZeRO-Inference: a layer's weights over the host link, whatever the small batch."""
    placement = Placement(weights=ON_HOST, state=ON_DEVICE, batch=1)
    parts = decode_layer(OPT, T4, placement, 512)
    streamed_s = sum(part.weights_in + part.state_in for part in parts)
    assert layer_seconds(parts, placement) == pytest.approx(streamed_s)
    a_layer_bytes = 12 * 7168**2 * 2
    assert streamed_s == pytest.approx(a_layer_bytes / (12.89 * 2**30), rel=1e-3)
    # A batch large enough hides it behind computing.
    large = decode_layer(OPT, T4, replace(placement, batch=8192), 1)
    assert sum(part.device for part in large) > streamed_s


def test_a_block_of_batches_shares_the_weights() -> None:
    one = Placement(weights=ON_HOST, state=ON_HOST, batch=8)
    many = replace(one, batches=6)
    rate = [offloaded_tokens_per_s(OPT, T4, placement, 64, 32) for placement in (one, many)]
    assert rate[1] > 3 * rate[0]
    for part, of_many in zip(*(decode_layer(OPT, T4, p, 64) for p in (one, many)), strict=True):
        assert part.weights_in == of_many.weights_in


def test_waits_after_each_batch_leave_weights_beside_the_first() -> None:
    """FlexGen: attention brings in the FFN's weights, the FFN those of the next attention."""
    free = Placement(weights=ON_HOST, state=ON_HOST, batch=8, batches=3, host_attention=True)
    placement = replace(free, waits_each_batch=True)
    parts = attention, ffn = decode_layer(OPT, T4, placement, 1024)
    of_attention, of_ffn = (
        max(part.compute, part.state_in, part.state_out) / 3 for part in (attention, ffn)
    )
    expected = max(ffn.weights_in, of_attention) + 2 * of_attention
    expected += max(attention.weights_in, of_ffn) + 2 * of_ffn
    assert layer_seconds(parts, placement) == pytest.approx(expected)
    assert ffn.weights_in == pytest.approx(2 * attention.weights_in, rel=1e-3)
    assert layer_seconds(parts, free) < expected  # nothing waits for anything
    one = replace(placement, batches=1)
    alone = decode_layer(OPT, T4, one, 1024)
    assert layer_seconds(alone, one) <= sum(p.weights_in + p.state_in + p.compute for p in alone)


def test_kernels_of_their_own_move_bytes_of_their_own() -> None:
    plain = Placement(weights=ON_DEVICE, state=ON_DEVICE, batch=4, state_bits=4.5)
    elements = 4 * 512 * 2 * 7168
    unpacked, copied = replace(plain, unpack_bytes=15.0), replace(plain, state_copy_bytes=4.0)
    for placement, per_element in ((unpacked, 15.0), (copied, 4.0)):
        slower = decode_layer(OPT, T4, placement, 512)
        added_s = slower[0].device - decode_layer(OPT, T4, plain, 512)[0].device
        assert added_s == pytest.approx(elements * per_element / T4.device_bytes_per_s)
    packed = prefill_layer(OPT, T4, replace(plain, pack_bytes=10.0), 512)[0].device
    added_s = packed - prefill_layer(OPT, T4, plain, 512)[0].device
    assert added_s == pytest.approx(elements * 10 / T4.device_bytes_per_s)
    scores = prefill_layer(OPT, T4, replace(plain, score_bytes=12.0), 512)[0].device
    # The whole square of scores, of 56 heads, is kept and computed.
    square_s = 4 * 512**2 * (56 * 12 / T4.device_bytes_per_s + 2 * 7168 / T4.device_flop_per_s)
    assert scores - prefill_layer(OPT, T4, plain, 512)[0].device == pytest.approx(square_s)


def test_the_disk_is_read_for_what_is_on_it_alone() -> None:
    for weights, state in ((ON_DEVICE, ON_DEVICE), (ON_HOST, ON_HOST)):
        for part in decode_layer(OPT, T4, Placement(weights=weights, state=state, batch=4), 512):
            assert part.weights_off_disk == part.state_disk == 0
    on_disk = decode_layer(OPT, T4, Placement(weights=ON_DISK, state=ON_DEVICE, batch=4), 512)
    read_s = sum(part.weights_off_disk for part in on_disk)
    assert read_s == pytest.approx(12 * 7168**2 * 2 / 2e9, rel=1e-3)


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
    prefill = prefill_layer(OPT, T4, wide, context)
    for before, after in (
        (base, decode_layer(OPT, T4, wide, context + more)),
        (base, decode_layer(OPT, T4, replace(wide, batch=batch + more), context)),
        (prefill, prefill_layer(OPT, T4, wide, context + more)),
    ):
        for part, larger in zip(before, after, strict=True):
            assert all(a <= b * (1 + 1e-9) for a, b in zip(part, larger, strict=True))
    narrow = decode_layer(OPT, T4, replace(wide, weight_bits=bits, state_bits=bits), context)
    for part, smaller in zip(base, narrow, strict=True):
        assert smaller.weights_in <= part.weights_in
        assert smaller.state_disk <= part.state_disk
    assert layer_seconds(base, wide) <= layer_seconds(base, replace(wide, overlap=False))


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
