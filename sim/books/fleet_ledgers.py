"""Ledgers between engines: how even the load was, what reuse was lost, how busy the links were.

Pure functions of a finished run's columns, as `sim.books.metrics` and `sim.books.ledger` are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.arrays import Int64
from sim.books.window import Window
from sim.fleet.cluster import RunLog
from sim.fleet.handover import TransferConfig
from sim.recorder import UNSET
from sim.step_log import StepLog

_MOST_IDS = 8_000_000
"""`reuse` is left out beyond this number of prefix ids, because it sorts them."""


class Balance(NamedTuple):
    """Requests, waiting or running, in the engines that take arrivals."""

    replica: int
    """The replica with the most requests."""
    most: float
    """Its requests, averaged over the window."""
    mean: float
    """Requests per engine, averaged over engines and window."""

    @property
    def overload(self) -> float:
        """Maximum over mean load: 1 is even, the number of engines means all in one."""
        return self.most / self.mean if self.mean else 1.0


class Reuse(NamedTuple):
    """Prompt tokens of admitted requests by where their prefixes were, in whole blocks."""

    prompt: int
    cached: int
    """Tokens found in the engine that the request was sent to."""
    fetched: int
    """The part of these that was fetched for the request from another engine."""
    elsewhere: int
    """Tokens computed before, but only on other engines: computed again because of the routing."""
    longest_elsewhere: int
    """The most such tokens of one request."""


class Busiest(NamedTuple):
    """The busiest link between engines."""

    link: str
    share: float
    """Share of the bytes it could have carried over the window."""


def balance(log: RunLog, window: Window) -> Balance | None:
    """Return how evenly arrivals were spread; None for a single engine or an empty window."""
    replicas = _entry(log)
    length_ns = window.end_ns - window.start_ns
    if len(replicas) < 2 or length_ns <= 0:
        return None
    loads = [_requests_ns(log.steps[index], log, window) / length_ns for index in replicas]
    most = int(np.argmax(loads))
    return Balance(replicas[most], loads[most], float(np.mean(loads)))


def reuse(log: RunLog) -> Reuse | None:
    """Return which prefixes were hit, and which were lost to routing; None without prefixes or
    with a single engine."""
    chains, requests = log.table.chains, log.requests
    caches = any(pool.engine.enable_prefix_caching for pool in log.fleet.pools)
    if chains is None or not caches or len(_entry(log)) < 2 or len(chains.ids) > _MOST_IDS:
        return None
    admitted_ns = np.frombuffer(requests.admitted_ns, np.int64)
    admitted = admitted_ns != UNSET
    if not admitted.any():
        return None
    prompt = log.table.prompt_tokens
    # A hit leaves at least one token to compute.
    whole = np.minimum(chains.tokens, prompt - 1) // chains.block_tokens
    whole = np.where(admitted, whole, 0)
    order = np.empty(len(prompt), np.int64)
    order[np.argsort(admitted_ns, kind="stable")] = np.arange(len(prompt))
    row = np.repeat(np.arange(len(prompt)), whole)
    inside = np.arange(len(row)) - np.repeat(np.cumsum(whole) - whole, whole)
    ids = np.unique(chains.ids[chains.offsets[row] + inside], return_inverse=True)[1]
    replica = np.frombuffer(requests.replica, np.int32).astype(np.int64)[row]
    before = _seen_before(ids, order[row])
    here = _seen_before(ids * len(log.steps) + replica, order[row])
    lost = np.bincount(row, before & ~here, minlength=len(prompt)) * chains.block_tokens
    for index in requests.fetched:
        lost[index] = 0  # transferred instead of computed again
    return Reuse(
        prompt=int(prompt[admitted].sum()),
        cached=int(np.frombuffer(requests.cached_tokens, np.int64)[admitted].sum()),
        fetched=sum(tokens for _, tokens in requests.fetched.values()),
        elsewhere=int(lost.sum()),
        longest_elsewhere=int(lost.max()),
    )


def busiest_link(log: RunLog, window: Window) -> Busiest | None:
    """Return the link between engines with the highest busy share; None if there are no links.

    A link that a fault cut or slowed counts with its full bandwidth.
    """
    transfer = log.fleet.transfer
    if transfer is None or not log.link_bytes or window.length_s <= 0:
        return None
    found = [
        Busiest(link, moved / (_bytes_per_s(link, log, transfer) * window.length_s))
        for link, moved in log.link_bytes.items()
    ]
    return max(found, key=lambda one: one.share)


def _bytes_per_s(link: str, log: RunLog, transfer: TransferConfig) -> float:
    """Return the bandwidth of a link by its name: ``core``, or a replica and a direction."""
    if link == "core":
        assert transfer.core_bytes_per_s is not None
        return transfer.core_bytes_per_s
    if log.fleet.pool_of[int(link.split()[1])].role == "prefill":
        return transfer.prefill_nic_bytes_per_s
    return transfer.decode_nic_bytes_per_s


def _entry(log: RunLog) -> list[int]:
    """Return the replicas that take arrivals."""
    return [index for index, pool in enumerate(log.fleet.pool_of) if pool.role != "decode"]


def _requests_ns(steps: StepLog, log: RunLog, window: Window) -> float:
    """Return requests waiting or running, integrated over the time in the window."""
    if not len(steps):
        return 0.0
    requests, plan_ns = steps.column("running") + steps.column("waiting"), steps.column("plan_ns")
    end_ns = np.minimum(
        np.append(plan_ns[1:], log.end_ns), np.maximum(steps.column("gpu_end_ns"), plan_ns)
    )
    return float((requests * window.overlap_ns(plan_ns, end_ns)).sum())


def _seen_before(keys: Int64, order: Int64) -> NDArray[np.bool_]:
    """Return, per entry, whether an entry of an earlier request has the same key."""
    first = np.full(int(keys.max(initial=0)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, keys, order)
    found: NDArray[np.bool_] = first[keys] < order
    return found
