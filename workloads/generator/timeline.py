"""The order of events: starts of requests and sessions, their turns, and which of them to keep.

Turns wait for answers, whose times only a simulation knows. Requests are therefore ordered by
nominal times, as if answers took no time: a turn comes a think time after the previous turn. A turn
cannot come earlier, so the order never binds. A run cut at a nominal time keeps its rate to the
end, while one cut by sessions would trail off as the last of them go on alone.

Sessions are in progress at time 0: the process begins some session lifetimes before it, and turns
before 0 are left out. So the rate and the lengths of contexts are those of a service in operation,
although its cache is empty. Sessions that all start at once are neither in progress nor cut by
time: they are kept one after another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from sim.arrays import Float64, Int64
from sim.clock import NS_PER_S
from sim.errors import ScenarioError
from workloads.generator.arrivals import ALL_AT_ONCE, LATEST_ARRIVAL_NS, Arrivals, arrival_times_s
from workloads.generator.distributions import mean_s, sample_counts, sample_s, stream
from workloads.generator.spec import GeneratorSpec

NONE = -1
_LIFETIMES = 5
"""Mean session lifetimes before 0 at which the process begins ..."""
_MOST_BEFORE = 3_000_000
"""... but no earlier than it takes to send this many requests."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """A timeline of ``n`` requests, session after session in order of their starts; some are not
    kept."""

    start: Int64
    """The start ``[n]`` (a request by itself, or a session) that each belongs to, from 0."""
    turn: Int64
    """Number ``[n]`` of the turn within the session, from 0."""
    kind: Int64
    """Position ``[n]`` in the spec's kinds."""
    client: Int64 | None
    """The client ``[starts]`` of each start, if arrivals have clients."""
    nominal_ns: Int64
    """Time ``[n]`` at which each would be sent if answers took no time; below 0: before the run."""
    after: Int64
    """The row ``[n]`` that has to be answered before; NONE if there is none."""
    think_ns: Int64
    """Time ``[n]`` from that answer until the request is sent."""
    kept: Int64
    """The rows ``[m]`` of the workload, by nominal time."""

    def __len__(self) -> int:
        return len(self.start)


def draw_timeline(spec: GeneratorSpec, seed: int) -> Timeline:
    """Draw as many requests as the spec asks for; the first ones do not depend on how many.

    Raises ScenarioError if the last would come after 146 years.
    """
    lead_s = _lead_s(spec)
    num_starts = _first_guess(spec, lead_s)
    end_ns = int(_to_ns(np.array(spec.duration_s or 0.0)))
    while True:
        timeline, known_until_ns = _draw(spec, num_starts, lead_s, seed)
        kept = np.flatnonzero((timeline.nominal_ns >= 0) & (timeline.nominal_ns <= known_until_ns))
        if spec.num_requests is not None:
            is_enough = len(kept) >= spec.num_requests
        else:
            is_enough = known_until_ns >= end_ns
        if is_enough:
            break
        num_starts *= 2  # the longer draw begins with the shorter one
    if not _starts_at_once(spec):
        kept = kept[np.argsort(timeline.nominal_ns[kept], kind="stable")]
    if spec.num_requests is not None:
        kept = kept[: spec.num_requests]
    else:
        kept = kept[timeline.nominal_ns[kept] < end_ns]
    if len(kept) and timeline.nominal_ns[kept[-1]] >= LATEST_ARRIVAL_NS:
        raise ScenarioError(f"{spec.source}: the last request would arrive after over 146 years")
    return replace(timeline, kept=kept)


def _starts_at_once(spec: GeneratorSpec) -> bool:
    return spec.users is None and spec.arrivals.process == ALL_AT_ONCE


def _lead_s(spec: GeneratorSpec) -> float:
    """Return how long before 0 the process begins."""
    if _starts_at_once(spec):
        return 0.0
    lives_s = [
        (kind.mean_turns - 1) * mean_s(kind.sessions.think_s)
        for kind in spec.kinds
        if kind.sessions is not None
    ]
    lead_s = _LIFETIMES * max(lives_s, default=0.0)
    rate_per_s = spec.arrivals.requests_per_s
    return lead_s if rate_per_s is None else min(lead_s, _MOST_BEFORE / rate_per_s)


def _first_guess(spec: GeneratorSpec, lead_s: float) -> int:
    """Return a number of starts that is likely to be enough."""
    start_per_s = (spec.arrivals.requests_per_s or 0.0) / spec.mean_turns
    if spec.num_requests is None:
        return math.ceil(start_per_s * ((spec.duration_s or 0.0) + lead_s) * 1.1) + 64
    if not spec.has_turns and spec.users is None:
        return spec.num_requests
    num_starts = math.ceil(1.1 * (spec.num_requests / spec.mean_turns + start_per_s * lead_s))
    if spec.users is not None:  # the same number for each user
        num_starts = spec.users.count * math.ceil(num_starts / spec.users.count + 1)
    return num_starts + (0 if spec.users is not None else 64)


def _draw(spec: GeneratorSpec, num_starts: int, lead_s: float, seed: int) -> tuple[Timeline, int]:
    """Draw all requests of ``num_starts`` starts, and the time until which these are all there
    are."""
    kind_of_start, turns = _kinds_and_turns(spec, num_starts, seed)
    first = np.cumsum(turns) - turns
    start = np.repeat(np.arange(num_starts), turns)
    turn = np.arange(len(start)) - first[start]
    kind = kind_of_start[start]
    think_ns = _turn_think_ns(spec, kind, turn, seed)
    since_first_ns = _sums_from(think_ns, first, start)
    after = np.where(turn > 0, np.arange(len(start)) - 1, NONE)
    lead_ns = int(_to_ns(np.array(lead_s)))
    client = None
    if spec.users is None:
        start_s, client = arrival_times_s(_shifted(spec, lead_s), num_starts, seed)
        start_ns = _to_ns(start_s) - lead_ns
        known_until_ns = LATEST_ARRIVAL_NS if _starts_at_once(spec) else int(start_ns[-1])
    else:
        last, count = first + turns - 1, spec.users.count
        gap_s = sample_s(spec.users.think_s, stream(seed, "users").random(num_starts))
        think_ns[first] = _to_ns(gap_s)
        after[first[count:]] = last[:-count]
        start_ns, ends_ns = _in_rounds(think_ns[first], since_first_ns[last], count)
        start_ns, known_until_ns = start_ns - lead_ns, int(ends_ns.min()) - lead_ns
    timeline = Timeline(
        start=start,
        turn=turn,
        kind=kind,
        client=client,
        nominal_ns=np.minimum(start_ns[start] + since_first_ns, LATEST_ARRIVAL_NS),
        after=after,
        think_ns=think_ns,
        kept=np.arange(0),
    )
    return timeline, known_until_ns


def _kinds_and_turns(spec: GeneratorSpec, n: int, seed: int) -> tuple[Int64, Int64]:
    kind, turns = np.zeros(n, np.int64), np.ones(n, np.int64)
    if len(spec.kinds) > 1:
        below = np.cumsum([k.share for k in spec.kinds])
        uniforms = stream(seed, "kinds").random(n)
        kind = np.searchsorted(below / below[-1], uniforms, side="right")
        kind = np.minimum(kind, len(spec.kinds) - 1)
    if spec.has_turns:
        uniforms = stream(seed, "turns").random(n)
        for index, one in enumerate(spec.kinds):
            if one.sessions is not None:
                mine = kind == index
                turns[mine] = sample_counts(one.sessions.turns, uniforms[mine])
    return kind, turns


def _turn_think_ns(spec: GeneratorSpec, kind: Int64, turn: Int64, seed: int) -> Int64:
    think_ns = np.zeros(len(turn), np.int64)
    if spec.has_turns:
        uniforms = stream(seed, "think").random(len(turn))
        for index, one in enumerate(spec.kinds):
            if one.sessions is not None:
                mine = (kind == index) & (turn > 0)
                think_ns[mine] = _to_ns(sample_s(one.sessions.think_s, uniforms[mine]))
    return think_ns


def _sums_from(think_ns: Int64, first: Int64, start: Int64) -> Int64:
    """Return ``[n]`` sums of think times within each session, at most the latest arrival."""
    # Sums over all sessions may wrap around; differences within one session are still right.
    sums_ns = np.cumsum(think_ns)
    sums_ns -= sums_ns[first][start]
    sums_s = np.cumsum(think_ns / NS_PER_S)
    is_too_long = sums_s - sums_s[first][start] > LATEST_ARRIVAL_NS / NS_PER_S
    return np.where(is_too_long, LATEST_ARRIVAL_NS, sums_ns)


def _to_ns(seconds: Float64) -> Int64:
    """Return whole nanoseconds, at most the latest arrival."""
    return np.rint(np.minimum(seconds * 1e9, float(LATEST_ARRIVAL_NS))).astype(np.int64)


def _shifted(spec: GeneratorSpec, lead_s: float) -> Arrivals:
    """Return the arrivals of starts, with the rate profile shifted to begin ``lead_s`` earlier."""
    arrivals = spec.arrivals
    if arrivals.requests_per_s is not None and spec.mean_turns > 1:
        arrivals = replace(arrivals, requests_per_s=arrivals.requests_per_s / spec.mean_turns)
    if arrivals.drift is not None and lead_s:
        drift = arrivals.drift
        start_s = (drift.start_s - lead_s) % drift.period_s
        arrivals = replace(arrivals, drift=replace(drift, start_s=start_s))
    return arrivals


def _in_rounds(gap_ns: Int64, life_ns: Int64, num_users: int) -> tuple[Int64, Int64]:
    """Return the starts of sessions that users take in turn, and when each user's last one ends.

    ``gap_ns`` before each session and ``life_ns`` of each are ``[rounds * users]``. Raises
    ScenarioError if they take more than 146 years.
    """
    gaps, lives = gap_ns.reshape(-1, num_users), life_ns.reshape(-1, num_users)
    if (gaps.sum(axis=0, dtype=np.float64) + lives.sum(axis=0, dtype=np.float64)).max() > 2**62:
        raise ScenarioError("the last request of a user would come after over 146 years")
    ends_ns = np.cumsum(gaps + lives, axis=0)
    return (ends_ns - lives).reshape(-1), ends_ns[-1]
