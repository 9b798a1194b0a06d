"""Recorded sessions: drawn, cut, repeated, stretched and replayed, and their invariants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.errors import ScenarioError
from sim.request_table import RequestTable, request_table
from tests.properties.tables import chain_lists, chains_of
from workloads.replay import draw_sessions, poisson_arrivals, replayed
from workloads.transform import (
    earliest_arrival_ns,
    limit,
    mean_rate_per_s,
    repeat,
    scale_rate,
    window,
    with_concurrency,
)

S = 10**9


@st.composite
def recordings(draw: st.DrawFn) -> RequestTable:
    """Recorded sessions on one clock: trees of turns; the prompt tokens name the row."""
    n = draw(st.integers(1, 25))
    session = np.array(draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)))
    gaps_s = draw(st.lists(st.sampled_from([0.0, 0.5, 7.0]), min_size=n, max_size=n))
    after = []
    for row in range(n):
        earlier = np.flatnonzero(session[:row] == session[row]).tolist()
        after.append(draw(st.sampled_from([-1, *earlier])) if earlier else -1)
    think_s = draw(st.lists(st.sampled_from([0.0, 1.0, 3.0]), min_size=n, max_size=n))
    ids = [[100 * s, 100 * s + 1 + row] for row, s in enumerate(session.tolist())]
    return request_table(
        np.cumsum(gaps_s),
        np.arange(1, n + 1),
        np.full(n, 2),
        chains=chains_of(ids, [2] * n, 1),
        session=session,
        after=np.array(after),
        think_ns=(np.array(think_s) * S).astype(np.int64),
    )


def links(table: RequestTable) -> dict[tuple[int, int], int]:
    """(prompt tokens of a row, of the row it follows) -> think time, where rows are unique."""
    if table.after is None or table.think_ns is None:
        return {}
    prompts = table.prompt_tokens.tolist()
    columns = zip(prompts, table.after.tolist(), table.think_ns.tolist(), strict=True)
    return {(row, prompts[after]): think for row, after, think in columns if after >= 0}


def contents(table: RequestTable) -> list[tuple[int, int, int, list[int]]]:
    assert table.session is not None
    columns = (table.prompt_tokens.tolist(), table.output_tokens.tolist(), table.session.tolist())
    return list(zip(*columns, chain_lists(table), strict=True))


def stretched(table: RequestTable, factor: float) -> RequestTable:
    """``table`` with every arrival multiplied by ``factor``."""
    return replace(table, arrival_ns=np.rint(table.arrival_ns * factor).astype(np.int64))


TRANSFORMS: dict[str, Callable[[RequestTable], RequestTable]] = {
    "window": lambda t: window(t, 1, 20),
    "limit": lambda t: limit(t, 7),
    "repeat": lambda t: repeat(t, 3),
    "time": lambda t: stretched(t, 2.5),
}


@settings(deadline=None)
@given(table=recordings(), names=st.lists(st.sampled_from(list(TRANSFORMS)), max_size=3))
def test_open_and_closed_hold_the_same_requests(table: RequestTable, names: list[str]) -> None:
    for name in names:
        table = TRANSFORMS[name](table)
    opened, closed = replayed(table, "open"), replayed(table, "closed")
    assert contents(opened) == contents(closed) == contents(table)
    assert opened.after is None
    assert opened.arrival_ns.tolist() == table.arrival_ns.tolist()
    assert links(closed) == links(table)
    if closed.after is not None:
        assert (closed.arrival_ns[closed.after >= 0] == 0).all()
        first = closed.after < 0
        assert closed.arrival_ns[first].tolist() == table.arrival_ns[first].tolist()


@settings(deadline=None)
@given(table=recordings(), start_s=st.floats(0, 30), length_s=st.floats(0.1, 30))
def test_a_window_keeps_links_within_it_and_no_others(
    table: RequestTable, start_s: float, length_s: float
) -> None:
    cut = window(table, start_s, start_s + length_s)
    kept = set(cut.prompt_tokens.tolist())
    expected = {pair: t for pair, t in links(table).items() if set(pair) <= kept}
    assert links(cut) == expected


@settings(deadline=None)
@given(table=recordings(), n=st.integers(1, 30))
def test_the_first_requests_keep_all_their_links(table: RequestTable, n: int) -> None:
    cut = limit(table, n)
    kept = set(cut.prompt_tokens.tolist())
    assert links(cut) == {pair: t for pair, t in links(table).items() if pair[0] in kept}


@settings(deadline=None)
@given(table=recordings(), times=st.integers(2, 4))
def test_copies_are_sessions_of_their_own(table: RequestTable, times: int) -> None:
    copies = repeat(table, times)
    n = len(table)
    assert copies.session is not None
    assert table.session is not None
    assert copies.after is not None
    assert table.after is not None
    parts = [set(copies.session[k * n : k * n + n].tolist()) for k in range(times)]
    assert (
        sum(map(len, parts)) == len(set.union(*parts)) == times * len(set(table.session.tolist()))
    )
    for k in range(times):
        after = copies.after[k * n : k * n + n]
        assert np.where(after >= 0, after - k * n, -1).tolist() == table.after.tolist()
    follows = copies.after >= 0
    assert (copies.session[follows] == copies.session[copies.after[follows]]).all()


@settings(deadline=None)
@given(table=recordings(), factor=st.sampled_from([0.5, 3.0]))
def test_stretching_leaves_think_times_alone(table: RequestTable, factor: float) -> None:
    scaled = stretched(table, factor)
    assert links(scaled) == links(table)
    assert scaled.arrival_ns.tolist() == (table.arrival_ns * factor).tolist()
    one, other = replayed(scaled, "closed"), stretched(replayed(table, "closed"), factor)
    assert one.arrival_ns.tolist() == other.arrival_ns.tolist()


def test_a_closed_table_is_scaled_by_its_session_starts() -> None:
    table = request_table(
        np.array([0.0, 0, 10, 0, 20]),
        np.full(5, 10),
        np.full(5, 1),
        after=np.array([-1, 0, -1, 2, -1]),
        think_ns=np.array([0, S, 0, S, 0]),
        session=np.array([0, 0, 1, 1, 2]),
    )
    assert mean_rate_per_s(table) == pytest.approx(2 / 20 * 5 / 3)
    scaled = scale_rate(table, 1.0)
    assert mean_rate_per_s(scaled) == pytest.approx(1.0)
    assert (scaled.arrival_ns[[1, 3]] == 0).all()
    assert scaled.think_ns is not None
    assert scaled.think_ns.tolist() == [0, S, 0, S, 0]


def test_a_turn_without_a_time_counts_with_its_first() -> None:
    table = request_table(
        np.array([0.0, 5, 0, 0]),
        np.arange(1, 5),
        np.full(4, 1),
        after=np.array([-1, -1, 1, 2]),
        think_ns=np.zeros(4, np.int64),
    )
    assert (earliest_arrival_ns(table) / S).tolist() == [0, 5, 5, 5]
    assert window(table, 4, 6).prompt_tokens.tolist() == [2, 3, 4]
    assert window(table, 0, 4).prompt_tokens.tolist() == [1]


def test_sessions_close_the_loop_already() -> None:
    table = request_table(
        np.array([0.0, 1]),
        np.array([1, 2]),
        np.array([1, 1]),
        after=np.array([-1, 0]),
        think_ns=np.array([0, 0]),
    )
    with pytest.raises(ScenarioError, match="replay them open"):
        with_concurrency(table, 2)
    assert with_concurrency(replayed(table, "open"), 2).max_concurrency == 2


@settings(deadline=None)
@given(
    table=recordings(),
    seed=st.integers(0, 5),
    duration_s=st.sampled_from([None, 3.0, 60.0]),
)
def test_drawn_sessions(table: RequestTable, seed: int, duration_s: float | None) -> None:
    num_sessions = 12 if duration_s is None else None
    drawn = draw_sessions(
        table, 36_000.0, duration_s=duration_s, num_sessions=num_sessions, seed=seed
    )
    assert drawn.session is not None
    assert table.session is not None
    assert (np.diff(drawn.arrival_ns) >= 0).all()
    whole = {
        s: Counter(table.prompt_tokens[table.session == s].tolist())
        for s in set(table.session.tolist())
    }
    for session in set(drawn.session.tolist()):
        rows = np.flatnonzero(drawn.session == session)
        prompts = drawn.prompt_tokens[rows]
        origin = int(table.session[prompts[0] - 1])
        recorded_ns = table.arrival_ns[prompts - 1]
        # On its own clock, at a time of its own.
        assert len(set((drawn.arrival_ns[rows] - recorded_ns).tolist())) == 1
        if duration_s is None:
            assert Counter(prompts.tolist()) == whole[origin]
        else:
            assert Counter(prompts.tolist()) <= whole[origin]
            assert drawn.arrival_ns[rows].max() < duration_s * S
    if num_sessions is not None:
        assert len(set(drawn.session.tolist())) == num_sessions
    if drawn.after is not None:
        follows = np.flatnonzero(drawn.after >= 0)
        assert (drawn.session[follows] == drawn.session[drawn.after[follows]]).all()
    assert links(drawn).items() <= links(table).items()


def test_a_session_drawn_again_has_ids_of_its_own() -> None:
    """The sessions share id 7; each draw of one shares it with the same draw of the other."""
    table = request_table(
        np.zeros(2),
        np.array([1, 2]),
        np.ones(2, np.int64),
        chains=chains_of([[7, 1], [7, 2]], [2, 2], 1),
        session=np.array([0, 1]),
    )
    drawn = draw_sessions(table, 60, num_sessions=40, seed=3)
    assert drawn.chains is not None
    first = drawn.chains.ids[::2].tolist()
    seen: dict[int, list[int]] = {1: [], 2: []}
    for prompt, root in zip(drawn.prompt_tokens.tolist(), first, strict=True):
        assert root not in seen[prompt]  # never the same twice for one session
        seen[prompt].append(root)
    shortest = min(map(len, seen.values()))
    assert shortest > 10
    assert seen[1][:shortest] == seen[2][:shortest]


def test_session_starts_are_poisson_and_depend_on_nothing_but_the_seed() -> None:
    one = request_table(
        np.zeros(1), np.ones(1, np.int64), np.ones(1, np.int64), session=np.zeros(1, np.int64)
    )
    many = draw_sessions(one, 720, num_sessions=20_000, seed=1)
    gaps_s = np.diff(many.arrival_ns) / S
    assert gaps_s.mean() == pytest.approx(5, rel=0.03)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(1, abs=0.03)
    few = draw_sessions(one, 720, duration_s=100, seed=1)
    assert few.arrival_ns.tolist() == many.arrival_ns[: len(few)].tolist()
    half = draw_sessions(one, 360, num_sessions=100, seed=1)
    assert half.arrival_ns == pytest.approx(many.arrival_ns[:100] * 2, abs=2)
    other = draw_sessions(one, 720, num_sessions=100, seed=2)
    assert other.arrival_ns.tolist() != many.arrival_ns[:100].tolist()


def test_arrivals_for_files_without_times() -> None:
    table = request_table(np.zeros(20_000), np.arange(1, 20_001), np.ones(20_000, np.int64))
    timed = poisson_arrivals(table, 4.0, seed=2)
    assert timed.prompt_tokens.tolist() == table.prompt_tokens.tolist()
    assert mean_rate_per_s(timed) == pytest.approx(4, rel=0.03)
    assert timed.notes == ("the file has no times: Poisson arrivals, 4 requests/s",)
    faster = poisson_arrivals(table, 8.0, seed=2)
    assert faster.arrival_ns == pytest.approx(timed.arrival_ns / 2, abs=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sessions_per_h": 0.0, "num_sessions": 1}, "sessions_per_h is 0"),
        ({"sessions_per_h": 60.0}, "either duration_s or num_sessions"),
        ({"sessions_per_h": 60.0, "num_sessions": 10**9}, "draw fewer"),
        ({"sessions_per_h": 1e-6, "num_sessions": 10_000}, "146 years"),
        ({"sessions_per_h": 1e-6, "duration_s": 5.0}, "no session starts within 5 s"),
    ],
)
def test_sessions_that_cannot_be_drawn(options: dict[str, float], message: str) -> None:
    table = request_table(
        np.zeros(1), np.ones(1, np.int64), np.ones(1, np.int64), session=np.zeros(1, np.int64)
    )
    with pytest.raises(ScenarioError, match=message):
        draw_sessions(table, **options)  # type: ignore[arg-type]


def test_a_table_without_sessions_has_none_to_draw() -> None:
    with pytest.raises(ScenarioError, match="has no sessions to draw from"):
        draw_sessions(
            request_table(np.zeros(1), np.ones(1, np.int64), np.ones(1, np.int64)),
            60,
            num_sessions=1,
        )
