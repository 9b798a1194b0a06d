"""Warnings about a run for its reader, in plain words."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from reports.warning_codes import WarningCode
from scenarios.run.fleet_sections import TIGHT, hot_spot, lost_prefixes, storm_facts, thin_link
from scenarios.schema import Scenario
from sim.books.metrics import RequestMetrics
from sim.fleet.cluster import RunLog

_FEWEST_ARRIVALS = 50  # needed to distinguish a trend from the system filling up
_FEWEST_BEYOND = 100  # samples beyond a percentile that make it worth quoting
CLOSE_TO_SATURATION = 0.85


def warnings_for(
    scenario: Scenario, log: RunLog, metrics: RequestMetrics, summary: dict[str, Any]
) -> list[dict[str, str]]:
    """Return warnings as {code, text}, the gravest first."""
    overdrawn = (check(scenario, summary) for check in (hot_spot, lost_prefixes, thin_link))
    checks = (
        _nothing_finished(summary),
        _retry_storm(log, metrics),
        *(None if found is None else _warning(*found) for found in overdrawn),
        _unstable(log, metrics),
        _near_saturation(summary),
        _rejected(summary),
        _failed(summary),
        _recomputed(log),
        _unfinished(summary),
        _nothing_to_cache(log),
        _tier_links(summary),
        _few_samples(summary),
        _failed_estimates(summary),
    )
    return [warning for warning in checks if warning is not None]


def _nothing_finished(summary: dict[str, Any]) -> dict[str, str] | None:
    requests = summary["requests"]
    if requests["arrived"] and not requests["finished"]:
        return _warning("nothing_finished", "no request finished: there are no latencies to show")
    return None


def _failed_estimates(summary: dict[str, Any]) -> dict[str, str] | None:
    failed = summary.get("failed_estimates")
    if not failed:
        return None
    return _warning(
        "failed_estimates",
        f"no estimate of {', '.join(failed)}: a fault of fleetcast's; the run itself is whole",
    )


def _unstable(log: RunLog, metrics: RequestMetrics) -> dict[str, str] | None:
    """Warn if the number of requests in the system keeps growing while they arrive (open loop)."""
    arrivals = np.sort(metrics.arrival_s[~np.isnan(metrics.arrival_s)])
    if not log.table.is_open_loop or len(arrivals) < _FEWEST_ARRIVALS:
        return None
    left_ns = np.frombuffer(log.requests.finished_ns, np.int64)
    left = np.sort(np.where(left_ns < 0, np.inf, left_ns / 1e9))
    # Only the middle and end of the arrivals count: at the start every system fills.
    at = np.linspace(arrivals[0], arrivals[-1], 21)[6:]
    in_system = np.searchsorted(arrivals, at, "right") - np.searchsorted(left, at, "right")
    slope, start = np.polyfit(np.arange(len(at)), in_system, 1)
    growth = slope * (len(at) - 1)
    if growth > max(20, 0.75 * max(start, 1)) and in_system[-1] >= 0.8 * in_system.max():
        return _warning(
            "unstable",
            f"the queue grows over the window: {in_system[0]:,} requests were in the system at "
            f"30% of the arrivals and {in_system[-1]:,} at their end; the latencies depend on how "
            "long the run lasts",
        )
    return None


def _retry_storm(log: RunLog, metrics: RequestMetrics) -> dict[str, str] | None:
    """Warn if clients that retry without bound sustain an overload that a short event began."""
    storm = storm_facts(log, metrics)
    config = log.fleet.service
    if storm is None or config is None:
        return None
    advice = (
        "with a retry budget (clients.retry_budget: 0.1) they would send little more than once"
        if math.isinf(config.clients.budget_burst)
        else "the retry budget is too large to prevent it"
    )
    return _warning(
        "retry_storm",
        f"the faults were over at {storm['over_s']:.6g} s, yet of the requests that came after "
        f"that {storm['good_after']:.0%} were good, of those before the faults "
        f"{storm['good_before']:.0%}: each is sent {storm['attempts_per_request']:.1f} times, and "
        f"these retries alone keep the engines too busy to answer any in time; {advice}",
    )


def _failed(summary: dict[str, Any]) -> dict[str, str] | None:
    reasons = summary.get("service", {}).get("fail_reasons")
    if not reasons:
        return None
    parts = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
    count = sum(reasons.values())
    return _warning("failed", f"{_requests(count, 'was', 'were')} given up: {parts}")


def _near_saturation(summary: dict[str, Any]) -> dict[str, str] | None:
    limit = summary["saturation"]
    if limit is None or limit["load"] is None or limit["load"] < CLOSE_TO_SATURATION:
        return None
    by_part = limit.get("by_part_per_s")
    of = ""
    if by_part:
        part = min(by_part, key=by_part.get)
        of = f" of the {part}" if part == "network" else f" of the {part} engines"
    if limit["load"] >= 1:
        return _warning(
            "near_saturation",
            f"the load is {limit['load']:.3g} times the estimated saturation rate{of} "
            f"({limit['saturation_per_s']:.3g} requests/s): the queue grows for as long as "
            "requests keep coming",
        )
    return _warning(
        "near_saturation",
        f"the load is {limit['load']:.0%} of the estimated saturation rate{of} "
        f"({limit['saturation_per_s']:.3g} requests/s): a 2% error in step times becomes 10 to "
        "50% of TTFT here",
    )


def _rejected(summary: dict[str, Any]) -> dict[str, str] | None:
    reasons = summary["requests"]["reject_reasons"]
    if not reasons:
        return None
    parts = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
    count = summary["requests"]["rejected"]
    return _warning(
        "rejected", f"{_requests(count, 'was', 'were')} rejected: {parts}; none of them is good"
    )


def _recomputed(log: RunLog) -> dict[str, str] | None:
    """Warn if swapped requests had to be computed again."""
    if log.pool.engine.preemption_mode != "swap" or not log.requests.recomputes:
        return None
    count = len(log.requests.recomputes)
    if log.table.beams is not None:
        count = sum(log.requests.preemptions)
        text = "beams that share blocks are not swapped"
    elif log.table.samples is not None:
        count = sum(log.requests.preemptions)
        text = "answers that share a prompt are not swapped"
    else:
        text = "the swap space was full; a larger kv.swap_space_gib has room for them"
    times = "once" if count == 1 else f"{count:,} times"
    return _warning("recomputed", f"preempted requests were computed again {times}: {text}")


def _unfinished(summary: dict[str, Any]) -> dict[str, str] | None:
    count = summary["requests"]["unfinished"]
    if not count:
        return None
    return _warning(
        "unfinished",
        f"{_requests(count, 'was', 'were')} still in the system at the horizon: latencies are of "
        "finished requests only, so they are biased low",
    )


def _nothing_to_cache(log: RunLog) -> dict[str, str] | None:
    """Warn if there are tiers below the prefix caches but the workload shares no prefixes."""
    if not log.tiers or log.table.chains is not None:
        return None
    return _warning(
        "nothing_to_cache",
        "the workload names no prefixes that requests share, so kv.tiers hold nothing; traces with "
        "hash ids do, and generators with system_prompts, documents or sessions",
    )


def _tier_links(summary: dict[str, Any]) -> dict[str, str] | None:
    """Links to a tier that are busy nearly all the time: loads wait in their queue."""
    busy = [f for f in summary.get("kv_tiers", ()) if f.get("link_busy", 0.0) >= TIGHT]
    if not busy:
        return None
    parts = ", ".join(f"{f['tier']} {f['link_busy']:.0%} of the time" for f in busy)
    return _warning(
        "tier_links",
        f"links to tiers of the prefix cache are hardly ever idle ({parts}): loads wait for each "
        "other and for writes, and what comes too late is computed again",
    )


def _few_samples(summary: dict[str, Any]) -> dict[str, str] | None:
    count = next(
        (f["count"] for f in summary["figures"] if (f["name"], f["statistic"]) == ("ttft", "p99")),
        0,
    )
    for percentile in (90, 95, 99):
        beyond = count * (100 - percentile) // 100
        if count and beyond < _FEWEST_BEYOND:
            which = "p99 rests" if percentile == 99 else f"p{percentile} and above rest"
            need = _FEWEST_BEYOND * 100 // (100 - percentile)
            return _warning(
                "few_samples",
                f"{which} on few samples: {_requests(beyond, 'lies', 'lie')} beyond "
                f"p{percentile}; {_FEWEST_BEYOND} would need {need:,} finished requests",
            )
    return None


def _warning(code: WarningCode, text: str) -> dict[str, str]:
    return {"code": code, "text": text}


def _requests(count: int, singular: str, plural: str) -> str:
    return f"1 request {singular}" if count == 1 else f"{count:,} requests {plural}"
