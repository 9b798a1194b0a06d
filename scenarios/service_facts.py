"""What happened around the engines: attempts, retries, outages, replicas; and retry storms."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.books.metrics import RequestMetrics
from sim.fleet.cluster import RunLog
from sim.fleet.service import ServiceLog
from sim.request import Status

_FEWEST = 30  # requests on each side of the faults, for their fates to be compared
_WAS_WELL, _IS_ILL = 0.9, 0.5  # good shares: before the faults, and relative to that after


def service_facts(log: RunLog, metrics: RequestMetrics) -> dict[str, Any]:
    """For summary.json; times in seconds, None where something did not come within the run."""
    service = log.service
    assert service is not None
    reasons: dict[str, int] = {}
    for index, reason in log.requests.fail_reasons.items():
        if metrics.measured[index]:
            reasons[reason] = reasons.get(reason, 0) + 1
    arrived = int((metrics.status != Status.WAITING).sum())
    return {
        "attempts": len(service.sent),
        "attempts_per_request": len(service.sent) / max(arrived, 1),
        "client_retries": service.client_retries,
        "retries_denied": service.retries_denied,
        "proxy_retries": service.proxy_retries,
        "fail_reasons": reasons,
        "outages": [
            {
                "replica": replica,
                "down_s": down_ns / 1e9,
                "detected_s": None if known_ns < 0 else known_ns / 1e9,
                "up_s": None if up_ns < 0 else up_ns / 1e9,
            }
            for replica, down_ns, known_ns, up_ns in service.outages
        ],
        "replica_availability": _availability(log, service),
        "replicas": [
            {
                "replica": replica,
                "from_s": start_ns / 1e9,
                "to_s": None if stop_ns < 0 else stop_ns / 1e9,
            }
            for replica, start_ns, stop_ns in service.lives
        ],
    }


def storm_facts(log: RunLog, metrics: RequestMetrics) -> dict[str, float] | None:
    """Whether retries keep a fleet down after its faults are over.

    Before the first fault nearly all requests were good; of those that were first sent after the
    last one was over, and every engine up, not half as many are, and they are sent several times.
    """
    service, config = log.service, log.fleet.service
    if service is None or config is None or not service.client_retries:
        return None
    starts = [outage[1] for outage in service.outages]
    ends = [outage[3] for outage in service.outages]
    for fault in config.faults.schedule if config.faults is not None else ():
        if fault.duration_ns:
            starts.append(fault.at_ns)
            ends.append(fault.at_ns + fault.duration_ns)
    if not starts or min(ends) < 0:
        return None
    arrival_ns = np.frombuffer(log.requests.arrival_ns, np.int64)
    before = metrics.measured & (arrival_ns < min(starts))
    after = metrics.measured & (arrival_ns > max(ends))
    if before.sum() < _FEWEST or after.sum() < _FEWEST:
        return None
    was_good, is_good = metrics.good[before].mean(), metrics.good[after].mean()
    if was_good < _WAS_WELL or is_good >= _IS_ILL * was_good:
        return None
    sent_after = int((np.array(service.sent) > max(ends)).sum())
    return {
        "over_s": max(ends) / 1e9,
        "good_before": float(was_good),
        "good_after": float(is_good),
        "attempts_per_request": sent_after / int(after.sum()),
    }


def _availability(log: RunLog, service: ServiceLog) -> float | None:
    """Share of the time that replicas were paid for in which none of it was an outage."""

    def length_ns(spans: list[tuple[int, int]]) -> int:
        return sum((log.end_ns if stop < 0 else stop) - start for start, stop in spans)

    paid_ns = length_ns([(start, stop) for _, start, stop in service.lives])
    down_ns = length_ns([(outage[1], outage[3]) for outage in service.outages])
    return 1 - down_ns / paid_ns if paid_ns else None
