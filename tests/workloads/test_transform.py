"""Transforms: what they change, what they preserve, and the identities between them."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.errors import ScenarioError
from sim.request_table import PrefixChains, RequestTable, request_table
from tests.properties.tables import chain_lists
from workloads.statistics.describe import describe
from workloads.transform import limit, mean_rate_per_s, repeat, scale_rate, window, with_concurrency


def table_at(*arrival_s: float) -> RequestTable:
    """Request i has i + 1 prompt tokens and the chain [0, i + 1]; blocks are one token."""
    n = len(arrival_s)
    ids = np.stack((np.zeros(n, np.int64), np.arange(1, n + 1)), axis=1).ravel()
    chains = PrefixChains(
        ids=ids,
        offsets=np.arange(n + 1) * 2,
        tokens=np.arange(1, n + 1),
        block_tokens=1,
    )
    return request_table(
        np.array(arrival_s), np.arange(1, n + 1), np.full(n, 7), chains=chains, source="test"
    )


def arrivals_s(table: RequestTable) -> list[float]:
    return (table.arrival_ns / 1e9).tolist()  # type: ignore[no-any-return]


FOUR = table_at(1, 2, 4, 4)


def test_scale_rate_gives_the_rate_and_keeps_the_shape() -> None:
    scaled = scale_rate(FOUR, 10)
    assert mean_rate_per_s(scaled) == pytest.approx(10)
    assert arrivals_s(scaled) == [0.1, 0.2, 0.4, 0.4]
    assert describe(scaled)["interarrival_cv"] == pytest.approx(describe(FOUR)["interarrival_cv"])
    assert scaled.notes == ("rate scaled to 10 requests/s",)
    assert FOUR.notes == ()


def test_window_is_half_open_rebased_and_cuts_chains() -> None:
    cut = window(FOUR, 2, 4)
    assert arrivals_s(cut) == [0]
    assert chain_lists(cut) == [[0, 2]]
    assert cut.chains is not None
    assert cut.chains.tokens.tolist() == [2]
    assert arrivals_s(window(FOUR, 1.5, 5)) == [0.5, 2.5, 2.5]
    assert len(window(FOUR, 5, 6)) == 0


def test_window_over_everything_is_the_table() -> None:
    whole = window(FOUR, 0, math.inf)
    assert arrivals_s(whole) == arrivals_s(FOUR)
    assert chain_lists(whole) == chain_lists(FOUR)


def test_limit_takes_the_first() -> None:
    assert limit(FOUR, 2).prompt_tokens.tolist() == [1, 2]
    assert chain_lists(limit(FOUR, 2)) == [[0, 1], [0, 2]]
    assert limit(FOUR, 4) is FOUR


def test_repeat_follows_after_a_mean_gap() -> None:
    twice = repeat(FOUR, 2)
    assert arrivals_s(twice) == [1, 2, 4, 4, 5, 6, 8, 8]
    assert twice.prompt_tokens.tolist() == [1, 2, 3, 4] * 2
    assert mean_rate_per_s(twice) == mean_rate_per_s(FOUR)
    assert repeat(FOUR, 1) is FOUR
    assert arrivals_s(repeat(table_at(0, 0), 2)) == [0, 0, 0, 0]


def test_repeated_copies_share_prefixes_only_when_asked() -> None:
    fresh = chain_lists(repeat(FOUR, 3))
    ids_of_copy = [{id_ for chain in fresh[k * 4 : k * 4 + 4] for id_ in chain} for k in range(3)]
    assert sum(len(ids) for ids in ids_of_copy) == len(set.union(*ids_of_copy)) == 15
    hit = describe(FOUR)["prefix_hit_fraction"]
    assert describe(repeat(FOUR, 3))["prefix_hit_fraction"] == pytest.approx(hit)
    shared = repeat(FOUR, 3, fresh_prefixes=False)
    assert chain_lists(shared) == chain_lists(FOUR) * 3
    assert describe(shared)["prefix_hit_fraction"] > hit


def test_with_concurrency_closes_the_loop() -> None:
    closed = with_concurrency(FOUR, 3)
    assert closed.max_concurrency == 3
    assert limit(closed, 2).max_concurrency == 3


@settings(deadline=None)
@given(
    gaps_s=st.lists(st.floats(0, 1000), min_size=1, max_size=30),
    times=st.integers(1, 4),
    split_s=st.floats(0.001, 20_000),
)
def test_cuts_and_copies_lose_nothing(gaps_s: list[float], times: int, split_s: float) -> None:
    table = table_at(*np.cumsum(gaps_s).tolist())
    copies = repeat(table, times, fresh_prefixes=False)
    assert len(copies) == times * len(table)
    first = limit(copies, len(table))
    assert first.arrival_ns.tolist() == table.arrival_ns.tolist()
    assert chain_lists(first) == chain_lists(table)
    before, after = window(copies, 0, split_s), window(copies, split_s, math.inf)
    assert chain_lists(before) + chain_lists(after) == chain_lists(copies)
    rejoined = np.concatenate((before.arrival_ns, after.arrival_ns + round(split_s * 1e9)))
    assert rejoined.tolist() == copies.arrival_ns.tolist()


BAD_CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "rate 0": (lambda: scale_rate(FOUR, 0), "requests_per_s is 0"),
    "rate nan": (lambda: scale_rate(FOUR, math.nan), "requests_per_s is nan"),
    "rate of one": (lambda: scale_rate(table_at(3), 1), "no rate"),
    "rate of none": (lambda: scale_rate(table_at(), 1), "no rate"),
    "rate at once": (lambda: scale_rate(table_at(3, 3), 1), "no rate"),
    "rate tiny": (lambda: scale_rate(FOUR, 1e-300), "146 years"),
    "window order": (lambda: window(FOUR, 3, 3), "expected 0 <= start < end"),
    "window nan": (lambda: window(FOUR, 0, math.nan), "expected 0 <= start < end"),
    "limit": (lambda: limit(FOUR, 0), "at least 1"),
    "repeat": (lambda: repeat(FOUR, 0), "at least 1"),
    "repeat huge": (lambda: repeat(FOUR, 10**12), "146 years"),
    "concurrency": (lambda: with_concurrency(FOUR, 0), "at least 1"),
}


@pytest.mark.parametrize(("call", "message"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_bad_arguments(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        call()
