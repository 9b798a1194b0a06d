"""Plain step costs, and random ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import numpy as np
from numpy.typing import NDArray

from sim.accounts import GPU_ACCOUNTS
from sim.protocols import DecodeRun, Rises, StepPrice
from sim.shape import SharedSums, StepShape
from sim.throttle import PowerThrottle


@dataclass(frozen=True, slots=True)
class AffineCost:
    """Seconds = base + tokens * per_token + context * per_context; host terms in ns.

    The context is that of decodes and the pairs of prefills, clipped ones (`sim.shape`) included;
    of prefixes that are shared, what is read and merged once in place of each sequence's.
    """

    base_s: float = 5e-3
    per_token_s: float = 2e-5
    per_context_s: float = 3e-8
    launch_delay_ns: int = 0
    launch_ns: int = 0
    tail_ns: int = 0
    host_ns: int = 0
    host_per_seq_ns: int = 0
    throttle: PowerThrottle | None = None
    compute_share: float = 0.0
    launch_spread: float = 0.0

    def price(self, shape: StepShape, draw: float | None = None) -> StepPrice:
        context = shape.decode_context_tokens + shape.prefill_pairs
        context += sum(shape.clipped[::4]) + sum(shape.clipped[3::4]) + _more_read(shape.shared)
        seconds = self.base_s + self.per_token_s * shape.num_tokens + self.per_context_s * context
        gpu_ns, launch_ns = round(seconds * 1e9), self.launch_ns
        if not shape.prefill_tokens:
            return StepPrice(gpu_ns, self.launch_delay_ns, launch_ns)
        if draw is not None:
            launch_ns = round(launch_ns * (1 + self.launch_spread * (draw - 0.5)))
        compute_ns = round(gpu_ns * self.compute_share)
        return StepPrice(gpu_ns, self.launch_delay_ns, launch_ns, self.tail_ns, compute_ns)

    def price_decodes(self, shape: StepShape, steps: int) -> DecodeRun:
        growth = shape.decode_seqs + sum(shape.clipped[1::4])
        context = shape.decode_context_tokens + sum(shape.clipped[::4]) + growth * np.arange(steps)
        context += _more_read(shape.shared)
        seconds = self.base_s + self.per_token_s * shape.num_tokens + self.per_context_s * context
        gpu_ns = np.rint(seconds * 1e9).astype(np.int64)
        return DecodeRun(self.price(shape), np.cumsum(gpu_ns).tolist(), int(gpu_ns.min()))

    def price_rounds(self, shape: StepShape, rises: Rises) -> DecodeRun:
        context = shape.decode_context_tokens + sum(shape.clipped[::4]) + np.array(rises.context)
        for clip in rises.clips:
            context += np.array(clip)
        seconds = self.base_s + self.per_token_s * shape.num_tokens + self.per_context_s * context
        gpu_ns = np.rint(seconds * 1e9).astype(np.int64)
        return DecodeRun(self.price(shape), np.cumsum(gpu_ns).tolist(), int(gpu_ns.min()))

    def schedule_ns(self, running: int) -> int:
        return self.host_ns + self.host_per_seq_ns * running

    def update_ns(self, seqs: int) -> int:
        return self.host_ns + self.host_per_seq_ns * seqs

    def split(self, columns: Mapping[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
        """Everything to the decode accounts where there are decodes, the rest to prefill."""
        decode_context, prefill_pairs = columns["decode_context_tokens"], columns["prefill_pairs"]
        for name, values in columns.items():
            if name.startswith("decode_clipped_tokens"):
                decode_context = decode_context + values
            elif name.startswith("prefill_clipped_pairs"):
                prefill_pairs = prefill_pairs + values
        if "decode_shared_tokens" in columns:
            names = SharedSums._fields
            decode_context = decode_context + _more_read(tuple(columns[name] for name in names))
        has_decodes = columns["decode_seqs"] > 0
        has_prefills = columns["prefill_tokens"] > 0
        zeros = np.zeros(len(decode_context))
        split = dict.fromkeys(GPU_ACCOUNTS, zeros)
        decode_tokens = columns["decode_seqs"] + columns.get("draft_tokens", 0.0)
        decode_tokens = self.per_token_s * decode_tokens
        split["decode_weight_reads"] = np.where(has_decodes, self.base_s, 0.0) + decode_tokens
        split["decode_state_reads"] = self.per_context_s * decode_context
        split["prefill_memory"] = np.where(has_prefills & ~has_decodes, self.base_s, 0.0)
        split["prefill_compute"] = (
            self.per_token_s * columns["prefill_tokens"] + self.per_context_s * prefill_pairs
        )
        return split


def _more_read(shared: tuple[Any, ...]) -> Any:
    if not shared:
        return 0
    tokens, reads, parts = shared
    return reads + 3 * parts - tokens


COSTS = st.builds(
    AffineCost,
    base_s=st.sampled_from([1e-4, 5e-3]),
    launch_delay_ns=st.sampled_from([0, 300_000]),
    launch_ns=st.sampled_from([0, 400_000, 6_000_000]),
    tail_ns=st.sampled_from([0, 100_000]),
    host_ns=st.sampled_from([0, 50_000]),
    host_per_seq_ns=st.sampled_from([0, 7_000]),
    throttle=st.sampled_from([None, PowerThrottle(0.3, 0.02, 0.05, 0.6)]),
    compute_share=st.sampled_from([0.0, 0.4, 1.0]),
    launch_spread=st.sampled_from([0.0, 0.8]),
)
