"""Prefix chains: cut, copied and coarsened, checked against a plain implementation."""

from __future__ import annotations

from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from sim.request_table import PrefixChains
from tests.properties.tables import chains_of
from tests.workloads.generator.preset_statistics import matched_tokens
from workloads.chains import copy_chains, regroup, take_chains


def lists(chains: PrefixChains) -> list[list[int]]:
    ends = chains.offsets.tolist()
    return [chains.ids[a:b].tolist() for a, b in pairwise(ends)]


@st.composite
def prefix_chains(draw: st.DrawFn, most_blocks: int = 12) -> PrefixChains:
    """Prompts of whole blocks over two kinds of content, as ids of their prefixes."""
    prompts = draw(
        st.lists(st.lists(st.integers(0, 1), max_size=most_blocks), min_size=1, max_size=8)
    )
    id_of: dict[tuple[int, ...], int] = {}
    ids = [
        [id_of.setdefault(tuple(prompt[: end + 1]), len(id_of)) for end in range(len(prompt))]
        for prompt in prompts
    ]
    return chains_of(ids, [4 * len(prompt) for prompt in prompts], 4)


@settings(deadline=None)
@given(chains=prefix_chains(), data=st.data(), shift=st.booleans(), long=st.booleans())
def test_taken_chains(chains: PrefixChains, data: st.DataObject, shift: bool, long: bool) -> None:
    if long:  # these are copied one at a time
        chains = chains_of([chain * 300 for chain in lists(chains)], chains.tokens.tolist(), 4)
    rows = st.integers(0, len(chains.tokens) - 1)
    index = data.draw(st.lists(rows, max_size=12))
    added = [1000 * i for i in range(len(index))] if shift else [0] * len(index)
    taken = take_chains(
        chains,
        np.array(index, np.int64),
        id_shift=np.array(added, np.int64) if shift else None,
    )
    old = lists(chains)
    assert lists(taken) == [[i + a for i in old[row]] for row, a in zip(index, added, strict=True)]
    assert taken.tokens.tolist() == [int(chains.tokens[row]) for row in index]


@pytest.mark.parametrize("large", [False, True], ids=["small ids", "ids that leave no room"])
def test_copies_share_within_and_not_between(large: bool) -> None:
    base = 2**62 if large else 0
    chains = chains_of([[base, base + 5], [base, base + 9]], [2, 2], 1)
    copies = copy_chains(chains, np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1]))
    first, second, third, fourth = lists(copies)
    assert first[0] == second[0]
    assert third[0] == fourth[0]
    assert len({*first, *second, *third, *fourth}) == 6


@settings(deadline=None)
@given(chains=prefix_chains(), group=st.integers(1, 4))
def test_regrouped_chains_share_whole_groups(chains: PrefixChains, group: int) -> None:
    coarse = regroup(chains, 4 * group)
    assert coarse.block_tokens == 4 * group
    assert coarse.tokens.tolist() == chains.tokens.tolist()
    old, new = lists(chains), lists(coarse)
    for a, ids in enumerate(old):
        assert len(new[a]) == -(-len(ids) // group)
        for b, other in enumerate(old):
            common = sum(i == j for i, j in zip(ids, other, strict=False))  # ids name prefixes
            expected = common // group
            if common == len(ids) == len(other):
                expected = len(new[a])  # partial last groups that are equal are one
            assert sum(i == j for i, j in zip(new[a], new[b], strict=False)) == expected


def test_groups_must_be_multiples() -> None:
    with pytest.raises(ValueError, match="6 is not a multiple of the chains' 4 tokens"):
        regroup(chains_of([[1]], [4], 4), 6)


def test_matched_tokens_by_hand() -> None:
    chains = chains_of([[1, 2], [1, 2, 3], [4], [1, 9]], [8, 10, 3, 7], 4)
    assert matched_tokens(chains).tolist() == [0, 8, 0, 4]
