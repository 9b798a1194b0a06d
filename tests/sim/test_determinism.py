"""A scenario and a seed determine every bit of the result, whatever else the computer is doing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from policies import ROUTERS, SCHEDULERS
from scenarios.build.builder import build
from scenarios.build.workload.table import build_table
from scenarios.files.load import load_scenario
from scenarios.run.result import RunResult
from scenarios.run.simulate import simulate
from scenarios.schema import Scenario
from sim.fleet.cluster import run_cluster
from tests.properties.checkout import CHECKOUT
from workloads.generator.presets import preset as load_preset
from workloads.generator.presets import preset_names

DEMO = CHECKOUT / "scenarios" / "demo.yaml"
REQUESTS = 300
# Pressure of every kind: two replicas, a pool so small that it preempts, a queue.
BUSY = ("pool.replicas=2", "kv.num_gpu_blocks=1500", "workload.rate_per_s=40")
VARIANTS = [
    *((f"engine.scheduler={name}",) for name in SCHEDULERS),
    *((f"pool.router={name}",) for name in ROUTERS),
    ("engine.async_scheduling=false",),
    ("workload.max_concurrency=30",),
]


def demo(*changes: str) -> Scenario:
    """The demo scenario, small, with changes."""
    return load_scenario(DEMO, [f"workload.num_requests={REQUESTS}", *changes])


class Bits(NamedTuple):
    """All that a run leaves behind, but for how long it took."""

    summary: dict[str, Any]
    requests: pd.DataFrame
    steps: pd.DataFrame

    def must_equal(self, other: Bits) -> None:
        """Not to a tolerance: every value."""
        assert self.summary == other.summary
        pd.testing.assert_frame_equal(self.requests, other.requests, check_exact=True)
        pd.testing.assert_frame_equal(self.steps, other.steps, check_exact=True)


def bits(result: RunResult) -> Bits:
    """Return the result of a run without its wall-clock time."""
    summary = {**result.summary, "run": {**result.summary["run"]}}
    del summary["run"]["wall_s"]
    return Bits(summary, result.requests, result.steps)


def run_bits(changes: tuple[str, ...]) -> Bits:
    """Run the busy demo with changes; what a worker process is sent."""
    return bits(simulate(demo(*BUSY, *changes)))


@cache
def first_run(changes: tuple[str, ...]) -> Bits:
    """The run that others are held against."""
    return run_bits(changes)


def test_the_busy_demo_is_busy() -> None:
    """It queues and preempts; otherwise the tests here would show little."""
    requests = first_run(()).requests
    assert requests["preemptions"].sum() > 0
    assert requests["queue_s"].max() > 1


@pytest.mark.parametrize("changes", VARIANTS, ids=" ".join)
def test_same_seed_same_bits(changes: tuple[str, ...]) -> None:
    """A second run in the same process repeats the first: no state is left behind."""
    run_bits(changes).must_equal(first_run(changes))


@pytest.mark.parametrize("workers", [1, 2])
def test_worker_processes_give_the_same_bits(workers: int) -> None:
    """Fresh interpreters with their own hash seeds, one or several, change nothing."""
    chosen = [VARIANTS[1], VARIANTS[4], ()]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        results = list(pool.map(run_bits, chosen))
    for changes, result in zip(chosen, results, strict=True):
        result.must_equal(first_run(changes))


@pytest.mark.parametrize("seed", [1, 2])
def test_other_seed_other_run(seed: int) -> None:
    """The seed reaches the workload: arrivals and lengths are drawn anew."""
    requests, others = first_run(()).requests, run_bits((f"seed={seed}",)).requests
    for column in ("arrival_s", "prompt_tokens", "output_tokens", "e2e_s"):
        assert (requests[column] != others[column]).any()


@contextmanager
def impatient_threads() -> Iterator[None]:
    """Threads take turns every few bytecodes."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("changes", [(), ("seed=1", "engine.scheduler=priority")], ids=" ".join)
def test_simulations_at_once_do_not_meet(changes: tuple[str, ...]) -> None:
    """Two runs of one process, each waiting for the other on the way, leave what each leaves."""
    together = threading.Barrier(2, timeout=60)

    def run(own: tuple[str, ...]) -> Bits:
        def meet(sent: int, total: int) -> None:
            together.wait()

        return bits(simulate(demo(*BUSY, *own), progress=meet))

    with impatient_threads(), ThreadPoolExecutor(2) as pool:
        results = list(pool.map(run, [(), changes]))
    for own, result in zip([(), changes], results, strict=True):
        result.must_equal(first_run(own))


def test_a_simulation_inside_another_does_not_meet_it() -> None:
    """Runs started from the progress call of a run disturb neither it nor each other."""
    inner: list[Bits] = []
    scenario = demo(*BUSY)
    outer = simulate(scenario, progress=lambda *_: inner.append(run_bits(VARIANTS[1])))
    assert len(inner) > 1
    bits(outer).must_equal(first_run(()))
    for result in inner:
        result.must_equal(first_run(VARIANTS[1]))


@pytest.mark.parametrize(
    "changes",
    [
        ("pool.replicas=3",),
        ("engine.scheduler=priority",),
        ("engine.tensor_parallel_size=2",),
        ("kv.num_gpu_blocks=500",),
        ("hardware.gpu=H100",),
    ],
    ids=" ".join,
)
def test_the_fleet_does_not_change_the_workload(changes: tuple[str, ...]) -> None:
    """Compared fleets are asked the same things at the same times."""
    table, other = build_table(demo()), build_table(demo(*changes))
    for name in ("arrival_ns", "prompt_tokens", "output_tokens", "priority"):
        np.testing.assert_array_equal(getattr(table, name), getattr(other, name))
    log = run_cluster(other, build(demo(*changes)).pool)
    assert list(log.requests.arrival_ns) == table.arrival_ns.tolist()


RATED = [
    name
    for name in preset_names()
    if load_preset(name).arrivals.requests_per_s is not None
    and all(kind.sessions is None for kind in load_preset(name).kinds)
]


@pytest.mark.parametrize("preset", RATED)
@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_a_rate_scales_arrivals_and_leaves_lengths(preset: str, factor: float) -> None:
    """At another rate the same requests come, in the same pattern, faster or slower.

    Bursts, silences, hours of the day and think times last as long at any rate, so they are not
    scaled; and of sessions other turns come first.
    """
    chosen = load_preset(preset)
    base = (f"workload.preset={preset}", "workload.rate_per_s=4")
    table = build_table(demo(*base))
    scaled = build_table(demo(*base, f"workload.rate_per_s={4 * factor}"))
    np.testing.assert_array_equal(table.prompt_tokens, scaled.prompt_tokens)
    np.testing.assert_array_equal(table.output_tokens, scaled.output_tokens)
    if chosen.arrivals.drift is None and chosen.arrivals.on_off is None:
        np.testing.assert_allclose(scaled.arrival_ns * factor, table.arrival_ns, rtol=0, atol=2)
