"""Lower bounds on the GPU time of any step of a replica, for pruning a search.

A step's price is a sum of three parts: one that depends on its number of new tokens (matrices,
experts, exchanges), what decode attention reads of contexts, and what prefill attention computes.
Each part has its own lower bound. That of the first consists of straight lines below its table (the
lower convex hull), so that the bounds of many steps add up to one bound on their sum: however a
scheduler cuts the work into steps, ``sum of prices >= a * steps + b * new tokens + c * context read
+ d * pairs``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from costmodels.steps.context_cost import ContextStepCost
from costmodels.steps.replica_cost import ReplicaStepCost
from costmodels.steps.step_cost import RooflineStepCost
from costmodels.steps.wrapped_cost import WrappedStepCost
from costmodels.work import Array
from sim.protocols import StepCost

_FIXED = float(1 << 32)
"""One in the fixed-point nanoseconds of the tables in `costmodels.steps.step_cost`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBounds:
    """``price(step) >= a + b * new tokens + context_ns * context + pair_ns * pairs`` in ns.

    The bound holds for each ``(a, b)`` of ``lines``; a >= 0.
    """

    lines: Array
    """``[k, 2]``: ns per step, and ns per new token."""
    context_ns: float
    """Nanoseconds per token of context that a decode reads."""
    pair_ns: float
    """Nanoseconds per query-key pair of prefill."""
    max_num_batched_tokens: int
    """Most new tokens per step."""

    def least_ns(self, steps: Array, tokens: Array) -> Array:
        """Return the least ns of work in at least ``steps`` steps and ``tokens`` new tokens, by
        the best line: ``[n]``."""
        of_lines = self.lines[:, :1] * steps + self.lines[:, 1:] * tokens
        least: Array = of_lines.max(axis=0)
        return least

    def prompt_ns(self, tokens: Array) -> Array:
        """Return the least ns of prompts with nothing cached, however they are chunked: ``[n]``."""
        steps = np.ceil(tokens / self.max_num_batched_tokens)
        return self.least_ns(steps, tokens) + self.pair_ns * tokens * (tokens + 1) / 2

    def decode_ns(self, context: Array) -> Array:
        """Return the least ns of one step that decodes one sequence of this context: ``[n]``."""
        one = np.ones_like(context)
        return self.least_ns(one, one) + self.context_ns * context


def step_bounds(cost: StepCost, max_num_batched_tokens: int) -> StepBounds:
    """Return the bounds of a compiled step cost.

    ``max_num_batched_tokens`` is the whole replica's. If contexts are clipped or priced from
    measured curves, the bound omits what attention reads of them. A step cost of another class (one
    that speculates, whose steps give a sequence several tokens) gets the bound 0, so that nothing
    is ruled out.
    """
    group = cost if isinstance(cost, ReplicaStepCost) else None
    rank = cost.rank if isinstance(cost, ReplicaStepCost) else cost
    kernels = rank.kernel_cost if isinstance(rank, WrappedStepCost) else rank
    if not isinstance(kernels, RooflineStepCost):
        return StepBounds(
            lines=np.zeros((1, 2)),
            context_ns=0.0,
            pair_ns=0.0,
            max_num_batched_tokens=max_num_batched_tokens,
        )
    # The busiest rank and micro-batch has at least an equal share of the tokens.
    ways = 1
    if group is not None:
        ways = group.layout.data_parallel_size * group.layout.pipeline_parallel_size
        ways *= 2 if group.layout.enable_dbo else 1
    shared = ways
    if isinstance(rank, ContextStepCost):
        shared *= rank.shard.layout.prefill_context_parallel_size
    own_ns = _rising(np.array(kernels.token_fixed_ns) / _FIXED)
    if group is not None:
        own_ns = own_ns + _rising(np.array(group.group_ns, dtype=np.float64))[: len(own_ns)]
    tokens = np.arange(1, max_num_batched_tokens + 1)
    share = np.minimum(-(-tokens // shared), len(own_ns) - 1)
    context_ns = pair_ns = 0.0
    if kernels.clips is None and kernels.shared is None:
        pair_ns = kernels.prefill_pair_fixed_ns / _FIXED / shared
        if kernels.curves is None:
            context_ns = min(kernels.decode_token_fixed_ns[1:]) / _FIXED / ways
    # A price is rounded down to whole nanoseconds, and a rank's parts of contexts to whole tokens.
    table_ns = np.maximum(own_ns[share] - 1.0 - context_ns, 0.0)
    return StepBounds(
        lines=_lines_below(tokens.astype(np.float64), table_ns),
        context_ns=context_ns,
        pair_ns=pair_ns,
        max_num_batched_tokens=max_num_batched_tokens,
    )


def _rising(values: Array) -> Array:
    """Return the largest non-decreasing table below ``values``: padding makes prices fall here
    and there."""
    least: Array = np.minimum.accumulate(values[::-1])[::-1]
    return least


def _lines_below(x: Array, y: Array) -> Array:
    """Return the lower convex hull's edges with intercepts of at least 0, and the best line
    through 0."""
    hull: list[int] = []
    for i in range(len(x)):
        while len(hull) > 1:
            before, last = hull[-2], hull[-1]
            turn = (x[last] - x[before]) * (y[i] - y[before])
            if turn > (y[last] - y[before]) * (x[i] - x[before]):
                break
            hull.pop()
        hull.append(i)
    lines = [(0.0, float((y / x).min()))]
    lines.append((float(y.min()), 0.0))
    for left, right in pairwise(hull):
        slope = (y[right] - y[left]) / (x[right] - x[left])
        intercept = y[left] - slope * x[left]
        if intercept >= 0:
            lines.append((float(intercept), float(slope)))
    return np.array(lines)
