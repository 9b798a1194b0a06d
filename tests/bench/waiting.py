"""Measure the simulator's cost of a step while many requests wait, for each scheduler."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from policies import SCHEDULERS
from scenarios.build.plugins import scheduler_factory
from sim.engine.config import EngineConfig
from sim.engine.step import Plan
from sim.engine.view import EngineView, Scheduler
from sim.request_table import request_table
from tests.properties.costs import AffineCost
from tests.properties.engines import small_run

_STEP_NS = 10_000_000
_ENGINE = EngineConfig(running_seq_limit=64, fast_forward=False, replica_blocks=8192)


class Timed:
    """A scheduler that notes when it is called: from one call to the next is a step."""

    def __init__(self, policy: Scheduler) -> None:
        self._policy = policy
        self.called_s: list[float] = []
        for name in ("attach", "waiting_order"):
            if hasattr(policy, name):
                setattr(self, name, getattr(policy, name))

    def __call__(self, view: EngineView) -> Plan:
        self.called_s.append(time.process_time())
        return self._policy(view)


def us_per_step(scheduler: Any, waiting: int, steps: int = 400) -> float:
    """Median processor time of a step, the engine's part included, while so many wait.

    Every request has arrived when the first step begins. Answers are short, so that many steps
    admit somebody, and nearly equal, so that the order of admission changes no batch.
    """
    rng = np.random.default_rng(0)
    n = waiting + steps * 8
    table = request_table(
        np.zeros(n),
        rng.integers(50, 500, n),
        rng.integers(15, 18, n),
        priority=rng.integers(0, 9, n),
    )
    tenants = rng.integers(0, 10, n)
    table = replace(table, class_index=tenants, class_names=tuple(map(str, range(10))))
    timed: list[Timed] = []
    make: Callable[[], Scheduler] = scheduler_factory(scheduler, SCHEDULERS)

    def make_timed() -> Scheduler:
        timed.append(Timed(make()))
        return timed[-1]

    cost = AffineCost(base_s=_STEP_NS / 1e9, per_token_s=0, per_context_s=0)
    until_ns = _STEP_NS * steps
    small_run(table, engine=_ENGINE, cost=cost, scheduler=make_timed, until_ns=until_ns)
    called_s = timed[0].called_s[2:]  # the first takes the arrivals in
    return 1e6 * statistics.median(np.diff(called_s))


def print_all(sizes: tuple[int, ...] = (1_000, 100_000)) -> None:
    """A row a scheduler: us a step with so many waiting."""
    print("\nA step while many wait, us (median, every step planned)")
    print(f"{'waiting':>22}" + "".join(f"{size:>12,}" for size in sizes))
    for name in SCHEDULERS:
        print(f"{name:>22}" + "".join(f"{us_per_step(name, size):>12.0f}" for size in sizes))
