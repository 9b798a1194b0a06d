"""Shortest job first, by a predicted length of the answer."""

import math
from statistics import NormalDist

from sim.draws import uniform
from sim.engine.step import UNTIL_CHANGE, Plan
from sim.engine.view import EngineView
from sim.errors import ScenarioError
from sim.request import Request

_DRAW = -(1 << 32)  # the number of the draw among a request's draws; not used elsewhere


class ShortestJobFirst:
    """Schedule as `policies.fcfs` does, but admit the shortest predicted answer first.

    The prediction is the true length times a lognormal factor of median 1, whose logarithm has the
    standard deviation ``sigma``: 0 is an oracle, 0.5 is off by a factor of 1.6 at one sigma. The
    factor belongs to the request and is the same in every run of a seed. Running requests are not
    preempted for shorter ones. Long answers can starve.
    """

    def __init__(self, *, sigma: float = 0.0) -> None:
        if sigma < 0:
            raise ScenarioError(f"sigma is {sigma:g}; it must not be negative")
        self._sigma = sigma
        self._seed = 0

    def attach(self, view: EngineView) -> None:
        """Take the random seed of the engine."""
        self._seed = view.config.seed

    def waiting_order(self, request: Request) -> float:
        """Return the predicted tokens of the answer, by which the waiting queue is sorted."""
        if not self._sigma:
            return request.output_tokens
        share = max(uniform(self._seed, request.index, _DRAW), 2.0**-53)
        return request.output_tokens * math.exp(self._sigma * NormalDist().inv_cdf(share))

    def __call__(self, view: EngineView) -> Plan:
        batch = view.new_batch()
        batch.add_running()
        if not batch.has_preempted:
            batch.admit_waiting()
        return batch.plan(repeat=UNTIL_CHANGE)
