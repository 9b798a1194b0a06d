"""Shared links against closed forms: equal parts, max-min shares, processor sharing queues."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.network import Network

GB = 10**9


def ended(env: simpy.Environment, times: dict[int, int], index: int) -> None:
    times[index] = int(env.now)


def at(env: simpy.Environment, when_ns: int, call: Callable[[], object]) -> None:
    """Call at a time."""

    def called(_: simpy.Event) -> None:
        call()

    env.timeout(when_ns).callbacks.append(called)


def network(env: simpy.Environment, **gigabytes_per_s: float) -> Network:
    net = Network(env)
    for name, speed in gigabytes_per_s.items():
        net.add_link(name, speed * GB)
    return net


def run_link(sizes: list[int], starts_ns: list[int], *, latency_ns: int = 0) -> dict[int, int]:
    """When each transfer over a link of 1 byte a ns ends."""
    env = simpy.Environment()
    net = network(env, pipe=1)
    times: dict[int, int] = {}
    for index, (size, start_ns) in enumerate(zip(sizes, starts_ns, strict=True)):
        done = partial(ended, env, times, index)
        at(env, start_ns, partial(net.start, ("pipe",), size, done, latency_ns=latency_ns))
    env.run()
    assert net.moved_bytes == {"pipe": sum(sizes)}
    return times


def fair_ends(sizes: list[int], starts_ns: list[int]) -> list[float]:
    """When each transfer ends if those in flight share 1 byte a ns equally, without rounding.

    Each ends once the bytes that every transfer in flight has been served reach its own target.
    """
    ends = [0.0] * len(sizes)
    waiting = sorted(range(len(sizes)), key=lambda index: starts_ns[index])
    target: dict[int, float] = {}
    now, served = 0.0, 0.0
    while waiting or target:
        first = min(target, key=lambda index: target[index], default=None)
        end = math.inf if first is None else now + (target[first] - served) * len(target)
        if waiting and starts_ns[waiting[0]] <= end:
            start = starts_ns[waiting[0]]
            served += (start - now) / len(target) if target else 0.0
            now = start
            index = waiting.pop(0)
            target[index] = served + sizes[index]
        elif first is not None:
            now, served = end, target.pop(first)
            ends[first] = now
    return ends


def test_a_lone_transfer_takes_its_bytes_and_the_latency() -> None:
    assert run_link([1000], [50], latency_ns=7) == {0: 1057}


def test_equal_transfers_share_equally() -> None:
    assert run_link([300] * 4, [0] * 4) == dict.fromkeys(range(4), 1200)


def test_a_short_transfer_delays_a_long_one_by_its_own_bytes() -> None:
    # Alone until 100, then halves until the short one's 50 bytes are through.
    assert run_link([1000, 50], [0, 100]) == {0: 1050, 1: 200}


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 2000)), min_size=1, max_size=20))
def test_sharing_conserves_work(transfers: list[tuple[int, int]]) -> None:
    """The link is never idle while there is work: busy periods end when one server's would."""
    starts, sizes = zip(*transfers, strict=True)
    times = run_link(list(sizes), list(starts))
    free_ns = 0
    for start_ns, size in sorted(zip(starts, sizes, strict=True)):
        free_ns = max(free_ns, start_ns) + size
    assert abs(max(times.values()) - free_ns) <= len(sizes)  # a rounding an event


def test_mean_time_in_a_processor_sharing_queue() -> None:
    """M/G/1 with processor sharing: a transfer of size x takes x / (1 - rho), whatever G is."""
    rng = np.random.default_rng(7)
    n, rho = 40_000, 0.6
    sizes = rng.choice([2_000, 30_000], n, p=[0.9, 0.1])
    gaps = rng.exponential(sizes.mean() / rho, n)
    starts = np.cumsum(gaps).astype(np.int64)
    times = run_link(sizes.tolist(), starts.tolist())
    took = np.array([times[i] for i in range(n)]) - starts
    for size in (2_000, 30_000):
        mean = took[sizes == size][500:].mean()
        assert mean == pytest.approx(size / (1 - rho), rel=0.06)


def test_cancelled_bytes_are_those_that_moved() -> None:
    env = simpy.Environment()
    net = network(env, pipe=1)
    times: dict[int, int] = {}
    first = net.start(("pipe",), 1000, partial(ended, env, times, 0))
    net.start(("pipe",), 1000, partial(ended, env, times, 1))
    moved: list[int] = []
    at(env, 400, lambda: moved.append(net.cancel(first)))
    env.run()
    assert moved == [200]
    assert times == {1: 1200}
    assert net.moved_bytes == {"pipe": 1200}


def test_max_min_shares_of_a_known_network() -> None:
    """Two links of 10 and 4 bytes a ns: a crosses both, b the first, c and d the second."""
    env = simpy.Environment()
    net = network(env, wide=10, narrow=4)
    flows = [
        net.start(path, 10**6, lambda: None)
        for path in (("wide", "narrow"), ("wide",), ("narrow",), ("narrow",))
    ]
    rates = [net.rate_bytes_per_s(flow) / GB for flow in flows]
    assert rates == pytest.approx([4 / 3, 10 - 4 / 3, 4 / 3, 4 / 3])


def test_a_paced_flow_leaves_its_rest_to_others() -> None:
    env = simpy.Environment()
    net = network(env, pipe=10)
    slow = net.start(("pipe",), 10**6, lambda: None, pace_bytes_per_s=GB)
    fast = net.start(("pipe",), 10**6, lambda: None)
    assert net.rate_bytes_per_s(slow) == pytest.approx(GB)
    assert net.rate_bytes_per_s(fast) == pytest.approx(9 * GB)


def test_a_cut_link_holds_its_flows_until_it_is_back() -> None:
    env = simpy.Environment()
    net = network(env, pipe=1)
    times: dict[int, int] = {}
    net.start(("pipe",), 1000, partial(ended, env, times, 0))
    at(env, 400, lambda: net.add_link("pipe", 0))
    at(env, 900, lambda: net.add_link("pipe", 2 * GB))
    env.run()
    assert times == {0: 1200}
    assert net.moved_bytes == {"pipe": 1000}


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 2000)), min_size=1, max_size=12))
def test_transfers_end_when_equal_shares_say(transfers: list[tuple[int, int]]) -> None:
    starts, sizes = (list(column) for column in zip(*transfers, strict=True))
    times = run_link(sizes, starts)
    # Each change rounds once.
    exact = fair_ends(sizes, starts)
    assert all(abs(times[i] - exact[i]) <= 2 * len(sizes) for i in range(len(sizes)))


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.sets(st.sampled_from("abcd"), min_size=1), st.integers(1, 5)),
        min_size=1,
        max_size=10,
    )
)
def test_no_link_carries_more_than_it_can_and_everyone_has_a_bottleneck(
    flows: list[tuple[set[str], int]],
) -> None:
    env = simpy.Environment()
    speeds = {"a": 1.0, "b": 2.0, "c": 5.0, "d": 9.0}
    net = network(env, **speeds)
    started = [
        net.start(tuple(sorted(path)), 10**9, lambda: None, pace_bytes_per_s=pace * GB)
        for path, pace in flows
    ]
    rates = [net.rate_bytes_per_s(flow) / GB for flow in started]
    load = {
        name: sum(rate for rate, (path, _) in zip(rates, flows, strict=True) if name in path)
        for name in speeds
    }
    assert all(load[name] <= speeds[name] * (1 + 1e-6) for name in speeds)
    for rate, (path, pace) in zip(rates, flows, strict=True):
        full = [name for name in path if load[name] >= speeds[name] * (1 - 1e-6)]
        at_pace = rate >= pace * (1 - 1e-6)
        largest_on_a_full_link = any(
            rate >= max(r for r, (p, _) in zip(rates, flows, strict=True) if name in p) * (1 - 1e-6)
            for name in full
        )
        assert at_pace or largest_on_a_full_link
