"""What a run has done, as plain values, so that two runs can be compared."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.fleet.cluster import RunLog
from sim.step_log import StepLog


def outcome(log: RunLog) -> dict[str, Any]:
    """Everything that must not depend on how the run was carried out."""
    steps = [s.columns() for s in log.steps]
    expanded = {
        name: [np.repeat(columns[name], columns["steps"]) for columns in steps]
        for name in ("decode_seqs", "prefill_tokens", "waiting", "preempted")
    }
    requests = log.requests
    return {
        "status": list(requests.status),
        "arrival": list(requests.arrival_ns),
        "admitted": list(requests.admitted_ns),
        "first_token": list(requests.first_token_ns),
        "finished": list(requests.finished_ns),
        "cached": list(requests.cached_tokens),
        "preemptions": list(requests.preemptions),
        "visible": [s.step_visible_ns().tolist() for s in log.steps],
        "gpu_ns": [int(columns["gpu_ns"].sum()) for columns in steps],
        "waits": [
            {account: [wait[1:] for wait in waits] for account, waits in steps.waits.items()}
            for steps in log.steps
        ],
        "end": log.end_ns,
        **{name: [list(map(int, column)) for column in value] for name, value in expanded.items()},
    }


def full_outcome(log: RunLog) -> dict[str, Any]:
    """`outcome`, and what service, speculation and cache tiers have done, where there are any."""
    found = outcome(log) | {"links": log.link_bytes, "replica": list(log.requests.replica)}
    if log.fleet.service is not None:
        found |= _service_outcome(log)
    if any(steps.speculates for steps in log.steps):
        found |= _speculation_outcome(log)
    if log.tiers:
        found |= _tier_outcome(log)
    return found


def _service_outcome(log: RunLog) -> dict[str, Any]:
    service, requests = log.service, log.requests
    return {
        "reasons": requests.reject_reasons | requests.fail_reasons,
        "sent": service.sent,
        "retries": (service.client_retries, service.proxy_retries, service.retries_denied),
        "outages": service.outages,
        "lives": service.lives,
        "sent again": requests.sent_ns,
    }


def _speculation_outcome(log: RunLog) -> dict[str, Any]:
    logs = [steps for steps in log.steps if steps.speculates]
    return {
        "rounds": dict(log.requests.rounds),
        "drafts": [_sum(steps, "draft_tokens") for steps in logs],
        "accepted": [int(steps.column("accepted_tokens").sum()) for steps in logs],
        "context": [
            _sum(steps, "decode_context_tokens") + int(steps.column("context_rise").sum())
            for steps in logs
        ],
    }


def _sum(steps: StepLog, name: str) -> int:
    """Sum of a column over all steps, several of which may share a row."""
    return int((steps.column("steps") * steps.column(name)).sum())


def _tier_outcome(log: RunLog) -> dict[str, Any]:
    ways = [way for tiers in log.tiers.values() for way in tiers.ways]
    return {
        "load_ns": log.requests.load_ns,
        "tier_tokens": log.requests.tier_tokens,
        "stores": [
            (way.store.added, way.store.evicted, way.store.lost, way.store.most_held)
            for way in ways
        ],
        "ways": [
            (way.counts.loads, way.counts.loaded, way.counts.written, way.to_device.busy_ns)
            for way in ways
        ],
    }
