"""Helpers for several tests: plain cost models, small runs, and the location of the shared data."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies import ROUTERS, SCHEDULERS
from scenarios.build.plugins import load_attribute, scheduler_factory
from sim.accounts import GPU_ACCOUNTS
from sim.books.token_times import gap_chunks
from sim.engine.config import EngineConfig
from sim.engine.view import Scheduler
from sim.fleet.cluster import PoolConfig, RunLog, run_cluster
from sim.kv.eviction import PLAIN_CACHE, CacheConfig
from sim.protocols import DecodeRun, Rises, Router, RoutingContext, StepCost, StepPrice
from sim.request_table import PrefixChains, RequestTable, request_table
from sim.shape import SharedSums, StepShape
from sim.throttle import PowerThrottle

CHECKOUT = next(
    folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").exists()
)
SHARED = Path(os.environ.get("FLEETCAST_SHARED", CHECKOUT.parent / "shared"))


def decode_gaps(log: RunLog) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All chunks of `gap_chunks` at once: gaps in ns, and how many tokens have each."""
    chunks = [(np.empty(0, np.int64), np.empty(0, np.int64)), *gap_chunks(log)]
    gaps, weights = zip(*chunks, strict=True)
    return np.concatenate(gaps), np.concatenate(weights)


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


def small_pool(
    engine: EngineConfig,
    *,
    cost: StepCost | None = None,
    scheduler: str | Callable[[], Scheduler] = "fcfs",
    router: str = "round_robin",
    replicas: int = 1,
    cache: CacheConfig = PLAIN_CACHE,
) -> PoolConfig:
    """A pool on a plain cost model, by the names of its policies."""
    make_router: Callable[[RoutingContext], Router] = load_attribute(ROUTERS[router])
    make_scheduler = scheduler if callable(scheduler) else scheduler_factory(scheduler, SCHEDULERS)
    return PoolConfig(
        engine=engine,
        cost=AffineCost() if cost is None else cost,
        make_scheduler=make_scheduler,
        make_router=make_router,
        replicas=replicas,
        cache=cache,
    )


def small_run(
    table: RequestTable, *, engine: EngineConfig, until_ns: int | None = None, **options: Any
) -> RunLog:
    """Run a table on a `small_pool` with these options."""
    return run_cluster(table, small_pool(engine, **options), until_ns=until_ns)


def table_of(*rows: tuple[float, int, int], max_concurrency: int | None = None) -> RequestTable:
    """A table from (arrival_s, prompt_tokens, output_tokens) rows."""
    arrival_s, prompt_tokens, output_tokens = np.array(rows, float).reshape(-1, 3).T
    return request_table(
        arrival_s,
        prompt_tokens.astype(np.int64),
        output_tokens.astype(np.int64),
        max_concurrency=max_concurrency,
    )


def chains_of(
    chains: list[list[int]], tokens: list[int], block_tokens: int, *, covers_output: bool = False
) -> PrefixChains:
    """Prefix chains from lists of ids."""
    offsets = np.cumsum([0, *map(len, chains)])
    ids = np.array([i for chain in chains for i in chain], np.int64)
    return PrefixChains(
        ids=ids,
        offsets=offsets,
        tokens=np.array(tokens, np.int64),
        block_tokens=block_tokens,
        covers_output=covers_output,
    )
