"""Sessions: growing turns, resets, their number, and those under way at the start."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sim.request_table import RequestTable
from tests.properties.generated import CHAT, KINDS, PLAIN, chain_of, columns, spec_of
from tests.workloads.generator.preset_statistics import input_block_hits, matched_tokens
from workloads.generator.arrivals import Arrivals
from workloads.generator.distributions import (
    Counts,
    Gamma,
    Lengths,
    counted,
    exponential_s,
    fixed,
    fixed_s,
    geometric,
    mean_count,
    sample_counts,
)
from workloads.generator.generate import generate
from workloads.generator.spec import RequestKind


def later_turns(table: RequestTable) -> tuple[np.ndarray, np.ndarray]:
    """Rows that continue a session, and the row each is sent after."""
    assert table.after is not None
    rows = np.flatnonzero(table.after >= 0)
    return rows, table.after[rows]


def test_turns_grow_by_answer_and_new_tokens() -> None:
    table = generate(spec_of(KINDS["chat"]), 0)
    assert table.chains is not None
    assert table.session is not None
    rows, befores = later_turns(table)
    assert np.array_equal(table.session[rows], table.session[befores])
    new = table.prompt_tokens[rows] - table.prompt_tokens[befores]
    assert (new > table.output_tokens[befores]).all()
    for row, earlier in zip(rows.tolist(), befores.tolist(), strict=True):
        before = chain_of(table.chains, earlier)
        assert chain_of(table.chains, row)[: len(before)] == before


def test_resets_keep_the_shared_prefix_and_prompts_stay_below_their_limit() -> None:
    table = generate(spec_of(KINDS["agents"], num_requests=3000), 0)
    assert table.chains is not None
    assert table.prompt_tokens.max() == 4000
    hits = matched_tokens(table.chains)
    after_first = table.after is not None and table.after >= 0
    assert hits[after_first].min() >= 48  # whole blocks of the 50 tokens all sessions share
    assert (hits[after_first] < 0.5 * table.prompt_tokens[after_first]).mean() > 0.05


def test_dropped_thinking_has_to_be_computed_anew() -> None:
    kept, dropped = (
        generate(spec_of(replace(PLAIN, sessions=replace(CHAT, kept_output=share))), 0)
        for share in (1.0, 0.3)
    )
    rows, befores = later_turns(dropped)
    whole = kept.prompt_tokens[rows] - kept.prompt_tokens[befores]
    new = whole - kept.output_tokens[befores]
    grown = dropped.prompt_tokens[rows] - dropped.prompt_tokens[befores]
    answers = np.rint(0.3 * dropped.output_tokens[befores])
    assert np.array_equal(grown - answers, new)
    assert dropped.chains is not None
    for row, before in zip(rows.tolist(), befores.tolist(), strict=True):
        chains = (chain_of(dropped.chains, row), chain_of(dropped.chains, before))
        whole_blocks = int(dropped.prompt_tokens[before]) // 16
        same = [a == b for a, b in zip(*chains, strict=False)]
        assert all(same[:whole_blocks])
        assert not any(same[whole_blocks + 1 :])


def test_sessions_are_under_way_from_the_start() -> None:
    """The rate and the lengths of contexts are the same in the first tenth of a run as in others,
    although a session lasts longer than that."""
    chat = replace(CHAT, turns=geometric(10.0), think_s=exponential_s(100.0))
    kind = replace(PLAIN, prompt_tokens=fixed(100), output_tokens=fixed(10), sessions=chat)
    table = generate(spec_of(kind, num_requests=8000), 0)
    assert (np.diff(table.arrival_ns) >= 0).all()
    tenth = (table.arrival_ns * 10 // (table.arrival_ns[-1] + 1)).astype(int)
    counts = np.bincount(tenth)
    assert counts[0] == pytest.approx(800, rel=0.12)
    assert counts[-1] == pytest.approx(800, rel=0.12)
    # A turn has on average as many before it as a geometric distribution has: 9.
    lengths = np.bincount(tenth, table.prompt_tokens) / counts
    np.testing.assert_allclose(lengths, 100 + 9 * 110, rtol=0.15)
    own = table.after is not None and table.after < 0
    assert table.prompt_tokens[own].max() > 2000  # some begin in the midst
    assert len(table) / (table.arrival_ns[-1] / 1e9) == pytest.approx(2.0, rel=0.05)


def test_a_duration_holds_the_turns_that_fall_into_it() -> None:
    kind = KINDS["chat"]
    short = generate(spec_of(kind, num_requests=None, duration_s=100.0), 0)
    longer = generate(spec_of(kind, num_requests=2000), 0)
    assert len(short) == (longer.arrival_ns < 100e9).sum()
    assert columns(short, len(short)) == columns(longer, len(short))


def test_sessions_that_start_all_at_once_are_whole() -> None:
    spec = replace(spec_of(KINDS["chat"]), arrivals=Arrivals(process="all-at-once"))
    table = generate(spec, 0)
    assert table.after is not None
    assert table.session is not None
    assert np.array_equal(table.session, np.sort(table.session))
    own = table.after < 0
    assert not table.arrival_ns[own].any()
    assert np.array_equal(table.session[own], np.arange(own.sum()))


COUNTS: dict[str, tuple[Counts | Lengths, float]] = {
    "fixed": (counted(7), 7.0),
    "one": (counted(1), 1.0),
    "geometric": (geometric(3.5), 3.5),
    "geometric up to 2": (geometric(2.0, 2), 1.5),
    "hazards": (Counts((0.5, 0.25, 0.0)), 1.625),
    "hazards that hold on": (Counts((0.3, 0.5)), 1.6),
    "mixture": (
        Lengths(components=(Gamma(shape=4.0, scale=10.0),), min_tokens=1, max_tokens=999),
        40.0,
    ),
}


@pytest.mark.parametrize(("counts", "mean"), COUNTS.values(), ids=COUNTS)
def test_counts_have_their_mean(counts: Counts | Lengths, mean: float) -> None:
    drawn = sample_counts(counts, np.random.default_rng(0).random(100_000))
    assert drawn.min() >= 1
    assert drawn.mean() == pytest.approx(mean, rel=0.01)
    assert mean_count(counts) == pytest.approx(mean, rel=1e-3)


def test_input_block_hits_follow_the_trace_rule() -> None:
    """Blocks of prompts alone, and a prompt's last, partial block is no part of a longer one."""
    sessions = replace(CHAT, turns=counted(2), think_s=fixed_s(1.0))
    kind = RequestKind(prompt_tokens=fixed(40), output_tokens=fixed(30), sessions=sessions)
    table = generate(spec_of(kind, num_requests=2), 0)
    assert table.prompt_tokens.tolist() == [40, 110]
    assert table.chains is not None
    assert matched_tokens(table.chains).tolist() == [0, 80]  # 70 tokens, the fifth block half full
    assert input_block_hits(table).tolist() == [0, 32]
