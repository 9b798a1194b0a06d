"""Ledgers of what lies between engines: how even the load, what reuse was lost, how busy the links.

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
"""Prefix ids beyond which `reuse` is left out: it sorts them."""


class Balance(NamedTuple):
    """Requests in the engines that take arrivals, waiting or running."""

    replica: int
    """The one that has the most."""
    most: float
    """Its requests, mean over the window."""
    mean: float
    """Over the engines."""

    @property
    def overload(self) -> float:
        """Max over mean load: 1 is even, the number of engines is all in one."""
        return self.most / self.mean if self.mean else 1.0


class Reuse(NamedTuple):
    """Prompt tokens of admitted requests by what became of their prefixes, whole blocks."""

    prompt: int
    cached: int
    """Found where the request was sent."""
    fetched: int
    """Of these, brought there for it from another engine."""
    elsewhere: int
    """Computed before, but only on other engines: computed again because of the routing."""
    longest_elsewhere: int
    """Of one request."""


class Busiest(NamedTuple):
    """A link between engines."""

    link: str
    share: float
    """Of what it could have carried over the window, it did."""


def balance(log: RunLog, window: Window) -> Balance | None:
    """How evenly arrivals were spread; None for a single engine, or an empty window."""
    replicas = _entry(log)
    length_ns = window.end_ns - window.start_ns
    if len(replicas) < 2 or length_ns <= 0:
        return None
    loads = [_requests_ns(log.steps[index], log, window) / length_ns for index in replicas]
    most = int(np.argmax(loads))
    return Balance(replicas[most], loads[most], float(np.mean(loads)))


def reuse(log: RunLog) -> Reuse | None:
    """What prefixes were hit, and what was lost to routing; None where none are known, or a
    single engine takes all."""
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
        lost[index] = 0  # not computed again, but brought
    return Reuse(
        prompt=int(prompt[admitted].sum()),
        cached=int(np.frombuffer(requests.cached_tokens, np.int64)[admitted].sum()),
        fetched=sum(tokens for _, tokens in requests.fetched.values()),
        elsewhere=int(lost.sum()),
        longest_elsewhere=int(lost.max()),
    )


def busiest_link(log: RunLog, window: Window) -> Busiest | None:
    """The link between engines that carried most of what it could; None where there is none.

    A link that a fault cut or slowed counts as whole.
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
    """Of a link by its name: ``core``, or which way of which replica."""
    if link == "core":
        assert transfer.core_bytes_per_s is not None
        return transfer.core_bytes_per_s
    if log.fleet.pool_of[int(link.split()[1])].role == "prefill":
        return transfer.prefill_nic_bytes_per_s
    return transfer.decode_nic_bytes_per_s


def _entry(log: RunLog) -> list[int]:
    """Replicas that take arrivals."""
    return [index for index, pool in enumerate(log.fleet.pool_of) if pool.role != "decode"]


def _requests_ns(steps: StepLog, log: RunLog, window: Window) -> float:
    """Requests waiting or running, summed over the time in the window."""
    if not len(steps):
        return 0.0
    requests, plan_ns = steps.column("running") + steps.column("waiting"), steps.column("plan_ns")
    end_ns = np.minimum(
        np.append(plan_ns[1:], log.end_ns), np.maximum(steps.column("gpu_end_ns"), plan_ns)
    )
    return float((requests * window.overlap_ns(plan_ns, end_ns)).sum())


def _seen_before(keys: Int64, order: Int64) -> NDArray[np.bool_]:
    """Of each entry, whether an entry of a request before it has the same key."""
    first = np.full(int(keys.max(initial=0)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, keys, order)
    found: NDArray[np.bool_] = first[keys] < order
    return found
