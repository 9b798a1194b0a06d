"""Prefix structure: equal ids are equal content, and hits follow from the structure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from sim.errors import ScenarioError
from tests.properties.engines import small_run
from tests.properties.generated import CHAT, KINDS, PASSAGES, PLAIN, chain_of, columns, spec_of
from tests.properties.queues import MICROSECOND_PER_TOKEN, ONE_AT_A_TIME
from tests.workloads.generator.preset_statistics import matched_tokens
from workloads.generator.arrivals import Arrivals
from workloads.generator.chain_ids import Lineage, build_chains
from workloads.generator.distributions import (
    Counts,
    Durations,
    Gamma,
    Lengths,
    counted,
    fixed,
    geometric,
)
from workloads.generator.generate import generate
from workloads.generator.sessions import Continuations, Resets
from workloads.generator.shared_prefixes import NONE, Documents, SystemPrompts
from workloads.generator.spec import RequestKind


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_longer_run_starts_with_the_shorter_one(kind: RequestKind) -> None:
    short, longer = (generate(spec_of(kind, num_requests=n), 3) for n in (150, 900))
    assert len(short) == 150
    assert columns(short, 150) == columns(longer, 150)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_ids_are_prefix_chained_and_cover_what_they_should(kind: RequestKind) -> None:
    """An id stands at one depth and always behind the same ids; chains are as long as needed."""
    table = generate(spec_of(kind), 1)
    chains = table.chains
    if not kind.shares_prefixes:
        assert chains is None
        return
    assert chains is not None
    covered = table.prompt_tokens + (table.output_tokens if chains.covers_output else 0)
    assert np.array_equal(chains.tokens, covered)
    assert np.array_equal(np.diff(chains.offsets), -(-covered // chains.block_tokens))
    before: dict[int, int] = {}
    for row in range(len(table)):
        path = -1
        for block in chain_of(chains, row):
            assert before.setdefault(block, path) == path
            path = block


@st.composite
def lineages(draw: st.DrawFn) -> Lineage:
    """Rows with random levels, some cut short, and rows that continue others."""
    n = draw(st.integers(1, 12))
    num_levels = draw(st.integers(0, 3))
    whole = {
        (level, content): draw(st.integers(1, 9))
        for level in range(num_levels)
        for content in (0, 1)
    }
    parent: list[int] = []
    shared: list[int] = []
    tokens: list[int] = []
    kind: list[int] = []
    content, level_tokens, whole_tokens = (np.zeros((n, num_levels), np.int64) for _ in range(3))
    content[:] = NONE
    for row in range(n):
        kind.append(draw(st.integers(0, 1)))
        before = draw(st.integers(NONE, row - 1))
        parent.append(before)
        if before == NONE:
            total = draw(st.integers(1, 30))
            left = total - 1
            for level in range(num_levels):
                chosen = draw(st.integers(NONE, 1))
                if chosen == NONE or not left:
                    continue
                content[row, level] = chosen
                whole_tokens[row, level] = whole[level, chosen]
                level_tokens[row, level] = min(left, whole[level, chosen])
                left -= level_tokens[row, level]
            shared.append(0)
        else:
            shared.append(draw(st.integers(0, tokens[before])))
            total = shared[-1] + draw(st.integers(1, 20))
        tokens.append(total)
    return Lineage(
        chain_tokens=np.array(tokens),
        parent=np.array(parent),
        shared_tokens=np.array(shared),
        kind=np.array(kind),
        level_content=content,
        level_tokens=level_tokens,
        whole_level_tokens=whole_tokens,
    )


def contents(lineage: Lineage) -> list[list[object]]:
    """Every token of every row, spelled out."""
    rows: list[list[object]] = []
    for row, total in enumerate(lineage.chain_tokens.tolist()):
        parent = int(lineage.parent[row])
        if parent != NONE:
            text = rows[parent][: int(lineage.shared_tokens[row])]
        else:
            text, path = [], [int(lineage.kind[row])]
            for level, content in enumerate(lineage.level_content[row].tolist()):
                if content != NONE:
                    path += [level, content]
                    text += [(tuple(path), i) for i in range(int(lineage.level_tokens[row, level]))]
        rows.append(text + [("own", row, i) for i in range(total - len(text))])
    return rows


@given(lineage=lineages(), block_tokens=st.integers(1, 7))
@settings(max_examples=60)
def test_equal_ids_are_equal_content(lineage: Lineage, block_tokens: int) -> None:
    """Two rows have the ids of all whole blocks in common that their contents have in common, and
    no id more but that of a block which one of them ends in."""
    chains = build_chains(lineage, block_tokens, covers_output=True)
    rows = contents(lineage)
    for a, b in combinations(range(len(rows)), 2):
        pair = list(zip(rows[a], rows[b], strict=False))
        same = next((i for i, (x, y) in enumerate(pair) if x != y), len(pair))
        ids = list(zip(chain_of(chains, a), chain_of(chains, b), strict=False))
        equal = next((i for i, (x, y) in enumerate(ids) if x != y), len(ids))
        assert same // block_tokens <= equal
        shorter = min(len(rows[a]), len(rows[b]))
        assert min(equal * block_tokens, shorter) <= same
        assert not {x for x, _ in ids[equal:]} & {y for _, y in ids[equal:]}


def test_popular_documents_are_asked_more_often() -> None:
    documents = Documents(tokens=fixed(160), collection=50, zipf=1.0)
    table = generate(spec_of(replace(PLAIN, documents=documents), num_requests=20_000), 0)
    assert table.chains is not None
    firsts = table.chains.ids[table.chains.offsets[:-1]]
    shares = np.sort(np.unique(firsts, return_counts=True)[1])[::-1] / len(table)
    zipf = 1 / np.arange(1, 51)
    np.testing.assert_allclose(shares[:5], (zipf / zipf.sum())[:5], rtol=0.1)
    assert np.array_equal(
        table.prompt_tokens - 160, generate(spec_of(PLAIN, num_requests=20_000), 0).prompt_tokens
    )


def test_something_unique_before_passages_leaves_them_unshared() -> None:
    system = SystemPrompts(tokens=64)
    kinds = [
        replace(
            PLAIN, documents=PASSAGES, system_prompts=replace(system, then_unique_tokens=unique)
        )
        for unique in (0, 20)
    ]
    shared, unshared = (generate(spec_of(kind, num_requests=2000), 0) for kind in kinds)
    assert np.array_equal(unshared.prompt_tokens, shared.prompt_tokens + 20)
    assert shared.chains is not None
    assert unshared.chains is not None
    assert set(matched_tokens(unshared.chains)[1:].tolist()) == {64}
    assert matched_tokens(shared.chains).mean() > 150


def test_clients_have_system_prompts_of_their_own() -> None:
    from workloads.generator.arrivals import Clients

    kind = replace(PLAIN, system_prompts=SystemPrompts(tokens=64, per_client=True))
    arrivals = Arrivals(requests_per_s=2.0, clients=Clients(shares=(3.0, 2.0, 1.0), cv={50: 1.0}))
    table = generate(replace(spec_of(kind, num_requests=3000), arrivals=arrivals), 0)
    assert table.chains is not None
    firsts = table.chains.ids[table.chains.offsets[:-1]]
    shares = np.unique(firsts, return_counts=True)[1] / len(table)
    np.testing.assert_allclose(np.sort(shares), [1 / 6, 2 / 6, 3 / 6], atol=0.03)


def test_continuations_leave_times_and_lengths_alone() -> None:
    kind = replace(
        PLAIN,
        continuations=Continuations(
            probability=0.5, shared={50: 0.8}, delay_s=Durations(min_s=10.0, max_s=10.0)
        ),
    )
    plain, continued = (generate(spec_of(k, num_requests=20_000), 0) for k in (PLAIN, kind))
    for name in ("arrival_ns", "prompt_tokens", "output_tokens"):
        assert np.array_equal(getattr(plain, name), getattr(continued, name))
    assert continued.is_open_loop
    assert continued.chains is not None
    hits = np.minimum(matched_tokens(continued.chains), continued.prompt_tokens)
    long_ones = continued.prompt_tokens > 200
    assert (hits[long_ones] > 0).mean() == pytest.approx(0.5, abs=0.03)
    found = hits[long_ones & (hits > 0)] / continued.prompt_tokens[long_ones & (hits > 0)]
    assert np.median(found) == pytest.approx(0.8, abs=0.07)  # whole blocks


def test_kinds_share_nothing_and_have_their_parts() -> None:
    system = SystemPrompts(tokens=160)
    kinds = (
        replace(PLAIN, system_prompts=system, name="a", share=3.0),
        replace(PLAIN, system_prompts=system, name="b", share=1.0, sessions=CHAT),
    )
    spec = spec_of(*kinds, num_requests=7000)
    assert spec.mean_turns == pytest.approx((3 + 4) / 4)
    table = generate(spec, 0)
    assert table.session is not None
    assert table.chains is not None
    turns = np.unique(table.session, return_counts=True)[1]
    firsts = table.chains.ids[table.chains.offsets[:-1]]
    assert len(np.unique(firsts)) == 2
    assert (turns > 1).mean() == pytest.approx(0.25 * 0.75, abs=0.02)
    assert len(table) / (table.arrival_ns[-1] / 1e9) == pytest.approx(2.0, rel=0.05)


def test_a_simulated_cache_without_limit_hits_what_the_chains_say() -> None:
    """One request at a time: all that came before is there, in whole blocks."""
    engine = replace(
        ONE_AT_A_TIME, block_size=16, replica_blocks=1 << 20, enable_prefix_caching=True
    )
    kind = replace(
        PLAIN,
        prompt_tokens=Lengths(
            components=(Gamma(shape=2.0, scale=100.0),), min_tokens=2, max_tokens=900
        ),
        documents=PASSAGES,
    )
    table = generate(spec_of(kind, num_requests=300), 2)
    assert table.chains is not None
    slow = replace(table, arrival_ns=np.arange(300) * 10**10)
    log = small_run(slow, engine=engine, cost=MICROSECOND_PER_TOKEN).requests
    matched = np.minimum(matched_tokens(table.chains), table.prompt_tokens - 1) // 16 * 16
    assert np.array_equal(np.frombuffer(log.cached_tokens, np.int64), matched)


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "system": (lambda: SystemPrompts(tokens=0), "expected at least 1"),
    "no system": (lambda: SystemPrompts(tokens=1, count=0), "0 system prompts"),
    "collection": (lambda: replace(PASSAGES, collection=0), "collection of 0 documents"),
    "documents": (lambda: replace(PASSAGES, probability=2.0), "probability 2.0"),
    "many": (lambda: replace(PASSAGES, per_request=counted(5000)), "over 1000 documents"),
    "kept": (lambda: replace(CHAT, kept_output=1.5), "kept_output is 1.5"),
    "no history": (
        lambda: replace(CHAT, history=False, kept_output=0.5),
        "without history have no resets",
    ),
    "longest": (lambda: replace(CHAT, max_prompt_tokens=0), "max_prompt_tokens is 0"),
    "resets": (lambda: Resets(probability=1.5), "resets with probability 1.5"),
    "endless": (lambda: Counts((1.0,)), "the turns never end"),
    "hazard": (lambda: Counts((1.5,)), "expected 0 to 1"),
    "mean": (lambda: geometric(0.5), "expected at least 1"),
    "both": (
        lambda: replace(KINDS["continuations"], sessions=CHAT),
        "give one of the two",
    ),
    "new tokens": (
        lambda: replace(PLAIN, sessions=replace(CHAT, new_tokens=fixed(0))),
        "new_tokens of a session must be at least 1",
    ),
    "no clients": (
        lambda: generate(
            spec_of(replace(PLAIN, system_prompts=SystemPrompts(tokens=9, per_client=True))), 0
        ),
        "need arrivals with clients",
    ),
    "in flight": (
        lambda: spec_of(KINDS["chat"], max_concurrency=4),
        "max_concurrency does not go with sessions",
    ),
    "blocks": (lambda: spec_of(PLAIN, block_tokens=0), "block_tokens is 0"),
    "too many blocks": (
        lambda: generate(
            spec_of(
                replace(KINDS["chat"], prompt_tokens=fixed(10**8)), num_requests=100, block_tokens=1
            ),
            0,
        ),
        "set generator.block_tokens higher",
    ),
}


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=BAD)
def test_bad_structure(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        call()
