"""Sections of summary.json about the fleet: balance between engines, attempts, outages,
replicas."""

from __future__ import annotations

from typing import Any

import numpy as np

from reports.warning_codes import WarningCode
from scenarios.build.plugins import policy_label
from scenarios.build.policy_checks import name_and_options
from scenarios.schema import Scenario
from sim.accounts import KV_TRANSFER
from sim.books.fleet_ledgers import balance, busiest_link, reuse
from sim.books.metrics import RequestMetrics
from sim.books.window import Window
from sim.fleet.cluster import RunLog
from sim.fleet.service import ServiceLog
from sim.request import Status

_OVERLOAD = 1.5  # max over mean load
_FEWEST_WAITING = 2.0  # requests that the busiest engine has more than the mean one
_LOST_SHARE = 0.1  # of prompt tokens
_TRANSFER_SHARE = 0.2  # of end-to-end time
TIGHT = 0.8  # of a link's time

_LOOK_AT_CACHES = ("prefix_affinity", "conductor", "preble")


def fleet_facts(log: RunLog, window: Window) -> dict[str, Any]:
    """Return each ledger that the run has, by name; {} for a single engine."""
    facts: dict[str, Any] = {}
    routing, reused, busiest = balance(log, window), reuse(log), busiest_link(log, window)
    if routing is not None:
        facts["routing"] = {
            "max_over_mean": routing.overload,
            "busiest_replica": routing.replica,
            "busiest_requests": routing.most,
            "mean_requests": routing.mean,
        }
    if reused is not None:
        facts["reuse"] = {
            "cached_share": reused.cached / reused.prompt,
            "lost_to_routing_share": reused.elsewhere / reused.prompt,
            "longest_lost_tokens": reused.longest_elsewhere,
        }
        if reused.fetched:
            facts["reuse"]["fetched_share"] = reused.fetched / reused.prompt
    if busiest is not None:
        facts["network"] = {"busiest_link": busiest.link, "busy_share": busiest.share}
    return facts


def hot_spot(scenario: Scenario, summary: dict[str, Any]) -> tuple[WarningCode, str] | None:
    """One engine has far more requests than the mean one."""
    routing = summary.get("fleet", {}).get("routing")
    if routing is None or routing["max_over_mean"] < _OVERLOAD:
        return None
    if routing["busiest_requests"] - routing["mean_requests"] < _FEWEST_WAITING:
        return None
    policy = _router(scenario)
    name, options = name_and_options(policy)
    why = f"the router, {policy_label(policy)}, does not look at load"
    if name in ("prefix_affinity", "consistent_hash") and options.get("load_bound", 1.25) is None:
        why = (
            f"{name} without a load bound sends every request that shares a prefix to the engine "
            "that has it; load_bound: 1.25 lets what is too much go elsewhere"
        )
    elif name not in ("random", "round_robin", "session_sticky"):
        why = f"the router is {policy_label(policy)}"
    return (
        "hot_spot",
        f"routing is overdrawn: replica {routing['busiest_replica']} has "
        f"{routing['max_over_mean']:.2g} times the mean load, {routing['busiest_requests']:.3g} "
        f"requests where the mean engine has {routing['mean_requests']:.3g}; {why}",
    )


def lost_prefixes(scenario: Scenario, summary: dict[str, Any]) -> tuple[WarningCode, str] | None:
    """Prompts were computed again because the engine that had them cached was not asked."""
    reused = summary.get("fleet", {}).get("reuse")
    if reused is None or reused["lost_to_routing_share"] < _LOST_SHARE:
        return None
    policy = _router(scenario)
    why = ""
    if name_and_options(policy)[0] not in _LOOK_AT_CACHES:
        why = (
            f"; {policy_label(policy)} does not look at caches, prefix_affinity sends a request "
            "to where its prefix is"
        )
    return (
        "lost_prefixes",
        f"reuse is lost: {reused['lost_to_routing_share']:.0%} of prompt tokens were computed on "
        f"one engine though another had computed the same prefix, up to "
        f"{reused['longest_lost_tokens']:,} tokens of one request; "
        f"{reused['cached_share']:.0%} came from a cache{why}",
    )


def thin_link(scenario: Scenario, summary: dict[str, Any]) -> tuple[WarningCode, str] | None:
    """Requests wait for their KV to cross the network."""
    network = summary.get("fleet", {}).get("network")
    if network is None:
        return None
    accounts_s = summary["e2e_accounts_s"]
    moving_s, total_s = accounts_s.get(KV_TRANSFER, 0.0), sum(accounts_s.values())
    busy = network["busy_share"]
    if not total_s or (moving_s / total_s < _TRANSFER_SHARE and busy < TIGHT):
        return None
    state = "overdrawn" if busy > 1 else "tight" if busy > TIGHT else "slow"
    link = network["busiest_link"]
    what = "the network between all engines" if link == "core" else f"link {link!r}"
    return (
        "thin_link",
        f"the network is {state}: {what} is busy {busy:.0%} of the time, and moving KV from "
        f"prefill to decode engines is {moving_s / total_s:.0%} of end-to-end time, "
        f"{moving_s:.3g} s a request; one pool that does both (pools: []) moves none",
    )


def _router(scenario: Scenario) -> Any:
    """Return the router of the engines that take arrivals."""
    for pool in scenario.pools:
        if pool.role != "decode":
            return scenario.pool.router if pool.router is None else pool.router
    return scenario.pool.router


_FEWEST = 30  # requests needed before and after the faults for a comparison
# share of good requests before the faults, and the share after them relative to it
_WAS_WELL, _IS_ILL = 0.9, 0.5


def service_facts(log: RunLog, metrics: RequestMetrics) -> dict[str, Any]:
    """Return the service section of summary.json.

    Times are in seconds, None if something did not happen within the run.
    """
    service = log.service
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
    """Return figures of a retry storm, which keeps a fleet down after its faults are over, or None.

    Before the first fault nearly all requests were good. Of those first sent after the last fault
    was over and every engine was up, less than half that share are good, and they are sent several
    times.
    """
    service, config = log.service, log.fleet.service
    if config is None or not service.client_retries:
        return None
    starts = [outage[1] for outage in service.outages]
    ends = [outage[3] for outage in service.outages]
    for fault in config.faults.schedule:
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
    """Return the share of the replicas' paid time that was not an outage."""

    def length_ns(spans: list[tuple[int, int]]) -> int:
        return sum((log.end_ns if stop < 0 else stop) - start for start, stop in spans)

    paid_ns = length_ns([(start, stop) for _, start, stop in service.lives])
    down_ns = length_ns([(outage[1], outage[3]) for outage in service.outages])
    return 1 - down_ns / paid_ns if paid_ns else None
