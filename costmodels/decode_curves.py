"""Decode attention that is no line in the context: straight between contexts that were measured."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from costmodels.work import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCurves:
    """Seconds of all layers by number of sequences and the mean of their contexts."""

    contexts: Array
    """Ascending from 0, whole numbers: ``[k]``. The new token counts."""
    seconds: Array
    """``[max_num_seqs + 1, k]``; beyond the last context on as between the last two."""

    def decode_s(self, seqs: Array, context_sum: Array) -> Array:
        """Seconds of ``n`` steps: ``[n]``; ``context_sum`` is without the new tokens."""
        called = np.maximum(seqs, 1.0)
        mean = np.where(seqs > 0, (context_sum + seqs) / called, 0.0)
        place = np.clip(
            np.searchsorted(self.contexts, mean, side="right") - 1, 0, len(self.contexts) - 2
        )
        of_seqs = seqs.astype(np.int64)
        low_s, high_s = self.seconds[of_seqs, place], self.seconds[of_seqs, place + 1]
        low, high = self.contexts[place], self.contexts[place + 1]
        return np.where(seqs > 0, low_s + (high_s - low_s) * (mean - low) / (high - low), 0.0)


def summed_curves(curves: Sequence[DecodeCurves]) -> DecodeCurves | None:
    """Several kinds of layers as one, at the contexts of any of them; None for none."""
    if len(curves) < 2:
        return curves[0] if curves else None
    contexts = np.unique(np.concatenate([one.contexts for one in curves]))
    seqs = np.arange(len(curves[0].seconds), dtype=np.float64)
    at = (
        np.repeat(seqs, len(contexts)),
        np.repeat(seqs, len(contexts)) * (np.tile(contexts, len(seqs)) - 1),
    )
    seconds = sum((one.decode_s(*at) for one in curves), np.zeros(len(at[0])))
    return DecodeCurves(contexts=contexts, seconds=seconds.reshape(len(seqs), -1))


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePrices:
    """The same in the fixed point of `costmodels.step_cost`. All are integers."""

    contexts: list[int]
    start: list[list[int]]
    """By sequences, at each context but the last."""
    token: list[list[int]]
    """By sequences, a token of all contexts from there to the next."""

    def at(self, decodes: int, context_sum: int) -> int:
        """The decodes of a step."""
        if not decodes:
            return 0
        tokens = context_sum + decodes
        place = self._place(tokens // decodes)
        beyond = tokens - decodes * self.contexts[place]
        return self.start[decodes][place] + beyond * self.token[decodes][place]

    def run(self, decodes: int, context_sum: int, steps: int) -> list[int]:
        """The decodes of so many steps, in each of which every context grows by one."""
        found: list[int] = []
        while len(found) < steps:
            done = len(found)
            tokens = context_sum + (done + 1) * decodes
            mean = tokens // decodes
            place = self._place(mean)
            count = steps - done
            if place + 1 < len(self.token[decodes]):
                count = min(count, self.contexts[place + 1] - mean)
            beyond = tokens - decodes * self.contexts[place]
            token = self.token[decodes][place]
            first = self.start[decodes][place] + beyond * token
            found += (
                range(first, first + count * decodes * token, decodes * token)
                if token
                else ([first] * count)
            )
        return found

    def slower(self, factor: float) -> CurvePrices:
        """All multiplied."""
        return CurvePrices(
            contexts=self.contexts,
            start=[[round(price * factor) for price in row] for row in self.start],
            token=[[round(price * factor) for price in row] for row in self.token],
        )

    def _place(self, mean: int) -> int:
        return min(bisect_right(self.contexts, mean), len(self.contexts) - 1) - 1


def curve_prices(curves: DecodeCurves | None, fixed: Callable[[float], int]) -> CurvePrices | None:
    """Compile them."""
    if curves is None:
        return None
    seqs = np.maximum(np.arange(len(curves.seconds)), 1)[:, None]
    tokens = seqs * np.diff(curves.contexts)
    token_s = np.diff(curves.seconds, axis=1) / tokens
    return CurvePrices(
        contexts=[int(context) for context in curves.contexts],
        start=[[fixed(s) for s in row] for row in curves.seconds[:, :-1].tolist()],
        token=[[fixed(s) for s in row] for row in token_s.tolist()],
    )
