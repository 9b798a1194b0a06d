"""What lies between engines, for summary.json, and what is said where one of its ledgers is
overdrawn: routing (max over mean load), reuse (prefixes computed again), network (busy share)."""

from __future__ import annotations

from typing import Any

from scenarios.plugins import policy_label
from scenarios.policy_options import name_and_options
from scenarios.schema import Scenario
from sim.accounts import KV_TRANSFER
from sim.books.fleet_ledgers import balance, busiest_link, reuse
from sim.books.window import Window
from sim.fleet.cluster import RunLog

_OVERLOAD = 1.5  # max over mean load
_FEWEST_WAITING = 2.0  # requests that the busiest engine has more than the mean one
_LOST_SHARE = 0.1  # of prompt tokens
_TRANSFER_SHARE = 0.2  # of end-to-end time
_TIGHT = 0.8  # of a link

_LOOK_AT_CACHES = ("prefix_affinity", "conductor")


def fleet_facts(log: RunLog, window: Window) -> dict[str, Any]:
    """Each ledger that the run has, by name; {} for a single engine."""
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


def hot_spot(scenario: Scenario, summary: dict[str, Any]) -> tuple[str, str] | None:
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


def lost_prefixes(scenario: Scenario, summary: dict[str, Any]) -> tuple[str, str] | None:
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


def thin_link(scenario: Scenario, summary: dict[str, Any]) -> tuple[str, str] | None:
    """Requests wait for their KV to cross the network."""
    network = summary.get("fleet", {}).get("network")
    if network is None:
        return None
    accounts_s = summary["e2e_accounts_s"]
    moving_s, total_s = accounts_s.get(KV_TRANSFER, 0.0), sum(accounts_s.values())
    busy = network["busy_share"]
    if not total_s or (moving_s / total_s < _TRANSFER_SHARE and busy < _TIGHT):
        return None
    state = "overdrawn" if busy > 1 else "tight" if busy > _TIGHT else "slow"
    link = network["busiest_link"]
    what = "the network between all engines" if link == "core" else f"link {link!r}"
    return (
        "thin_link",
        f"the network is {state}: {what} is busy {busy:.0%} of the time, and moving KV from "
        f"prefill to decode engines is {moving_s / total_s:.0%} of end-to-end time, "
        f"{moving_s:.3g} s a request; one pool that does both (pools: []) moves none",
    )


def _router(scenario: Scenario) -> Any:
    """Of the engines that take arrivals."""
    for pool in scenario.pools:
        if pool.role != "decode":
            return scenario.pool.router if pool.router is None else pool.router
    return scenario.pool.router
