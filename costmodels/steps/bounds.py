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

from costmodels.layouts.layout import Layout
from costmodels.steps.compiled import CompiledPrices
from costmodels.work import ONE, Array


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


def step_bounds(
    compiled: CompiledPrices, group_ns: list[int], layout: Layout, max_num_batched_tokens: int
) -> StepBounds:
    """Return the bounds of a replica's steps.

    ``group_ns`` prices what ranks share by their mean tokens; it is empty if they share nothing.
    ``max_num_batched_tokens`` is the whole replica's. If contexts are clipped or priced from
    measured curves, the bound omits what attention reads of them.
    """
    # The busiest rank and micro-batch has at least an equal share of the tokens.
    ways = layout.data_parallel_size * layout.pipeline_parallel_size
    ways *= 2 if layout.enable_dbo else 1
    shared = ways * layout.prefill_context_parallel_size
    own_ns = _rising(np.array(compiled.token_fixed_ns) / ONE)
    if group_ns:
        own_ns = own_ns + _rising(np.array(group_ns, dtype=np.float64))[: len(own_ns)]
    tokens = np.arange(1, max_num_batched_tokens + 1)
    share = np.minimum(-(-tokens // shared), len(own_ns) - 1)
    context_ns = pair_ns = 0.0
    if compiled.clips is None and compiled.shared is None:
        pair_ns = compiled.prefill_pair_fixed_ns / ONE / shared
        if compiled.curves is None:
            context_ns = min(compiled.decode_token_fixed_ns[1:]) / ONE / ways
    # A price is rounded down to whole nanoseconds, and a rank's parts of contexts to whole tokens.
    table_ns = np.maximum(own_ns[share] - 1.0 - context_ns, 0.0)
    return StepBounds(
        lines=_lines_below(tokens.astype(np.float64), table_ns),
        context_ns=context_ns,
        pair_ns=pair_ns,
        max_num_batched_tokens=max_num_batched_tokens,
    )


def no_bounds(max_num_batched_tokens: int) -> StepBounds:
    """Return the bounds 0, which rule nothing out."""
    return StepBounds(
        lines=np.zeros((1, 2)),
        context_ns=0.0,
        pair_ns=0.0,
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
