"""Shortest job first, by a predicted answer length."""

import math
from statistics import NormalDist

from sim.draws import uniform
from sim.engine.batch import UNTIL_CHANGE, Plan
from sim.engine.view import EngineView
from sim.errors import ScenarioError
from sim.request import Request

_DRAW = -(1 << 32)  # of a request: not one that anything else uses


class ShortestJobFirst:
    """As `policies.fcfs`, but the request with the shortest predicted answer is admitted first.

    The prediction is the true length times a lognormal factor of median 1 and standard deviation
    ``sigma`` (of its logarithm): 0 is an oracle, 0.5 is off by 1.6 times at one sigma. A request's
    factor is its own, the same in every run of a seed. Nobody running is preempted for a shorter
    one. Long answers can starve.
    """

    def __init__(self, *, sigma: float = 0.0) -> None:
        if sigma < 0:
            raise ScenarioError(f"sigma is {sigma:g}; it must not be negative")
        self._sigma = sigma
        self._seed = 0

    def attach(self, view: EngineView) -> None:
        """Take the seed of the engine it serves."""
        self._seed = view.config.seed

    def waiting_order(self, request: Request) -> float:
        """Key of the waiting queue: predicted tokens of the answer."""
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
