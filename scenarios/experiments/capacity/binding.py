"""What binds at the capacity: the target missed first, and where the slowest requests' time
went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reports.numbers import humanised, percent, whole_percent
from scenarios.experiments.capacity.measure import Row, nearest
from sim.accounts import TIME_ACCOUNTS

_OFTEN = 0.01  # share of time at a limit, or of requests preempted, that shows in the tail
_FULL = 0.97  # share of the KV cache
_MUCH = 0.05  # share of time in full steps from which on their size holds prompts back
_ROOM = 0.8  # share of a target up to which the 99th percentile leaves room

_BY_ACCOUNT = {
    "scheduling_wait": "Requests wait for a step that has begun, and steps that carry prefills "
    "are long: prefix cache hits, a GPU with more compute or more replicas shorten them",
    "others_prefill": "Less prefill beside the decodes is what helps: prefix cache hits, a GPU "
    "with more compute, prefill on GPUs of its own, or more replicas; a smaller "
    "max_num_batched_tokens only spreads the same work over more steps",
    "prefill_compute": "Prefill is bound by compute: a faster GPU, a larger tensor_parallel_size "
    "or more prefix cache hits shorten it",
    "prefill_memory": "Prefill is bound by memory: a larger max_num_batched_tokens reads the "
    "weights less often",
    "decode_state_reads": "Batches are large or contexts long: kv.cache_dtype fp8 halves these "
    "reads, a lower max_num_seqs bounds them, and more replicas share them",
    "decode_weight_reads": "Every step reads the weights: engine.quantization fp8 or a larger "
    "tensor_parallel_size shortens that",
    "communication": "A smaller tensor_parallel_size with more replicas exchanges less",
    "launch_and_host": "The host holds the GPU back: a faster host, or async_scheduling where it "
    "is off, would help before a faster GPU does",
    "api_server": "The API server is short of time: a higher engine.api_server_count shares its "
    "work",
    "kv_transfer": "KV is waited for on its way to the decode engines: faster links, pushing it "
    "while it is computed, or prefill and decode in one pool take that away",
    "preemption_recompute": "The KV cache overflows: more of it (gpu_memory_utilization, "
    "kv.cache_dtype fp8, tensor parallelism) or a lower max_num_seqs ends the preemptions",
    "preemption_swap": "The KV cache overflows to the host: more of it (gpu_memory_utilization, "
    "kv.cache_dtype fp8, tensor parallelism) or a lower max_num_seqs ends the preemptions",
    "failure_rework": "Requests fail or time out and are sent again: more replicas, or a time-out "
    "that the latencies keep to, takes that away",
    "remainder": "Larger batches run larger kernels: more replicas share them",
}


def advice(found: dict[str, Any], targets: dict[str, float]) -> str:
    """Return a sentence on the account behind the target that binds: a hint, not a promise."""
    account = found["cause"]
    if account == "admission_queue":
        text = _for_queue(found, targets)
    else:
        text = _BY_ACCOUNT.get(account, "")
    return f"{text}." if text else ""


def _for_queue(found: dict[str, Any], targets: dict[str, float]) -> str:
    state = found["state"]
    if state["at_max_num_seqs"] >= _OFTEN:
        return (
            f"max_num_seqs is reached for {state['at_max_num_seqs']:.0%} of the time: a higher one "
            "admits more, as long as the KV cache has room"
        )
    if state["kv_occupancy_max"] >= _FULL or state["preempted_share"] >= _OFTEN:
        return (
            "The KV cache is full: more of it (gpu_memory_utilization, kv.cache_dtype fp8, "
            "tensor parallelism) or more replicas admit more"
        )
    full = state["at_max_num_batched_tokens"]
    if full < _MUCH:
        return (
            "Prompts queue because prefill is short of compute: prefix cache hits, a faster GPU or "
            "more replicas help"
        )
    return (
        f"{full:.0%} of the time is in steps that hold all the max_num_batched_tokens they may: a "
        f"larger one takes more prompts at once{_room(found, targets, 'tpot')}"
    )


def _room(found: dict[str, Any], targets: dict[str, float], metric: str) -> str:
    """Say whether another target leaves room for a trade-off."""
    p99_s = found["latency_s"].get(metric, {}).get("p99")
    if metric not in targets or p99_s is None:
        return ""
    used = p99_s / targets[metric]
    room = "has room" if used < _ROOM else "has little room"
    return f" ({metric.upper()} {room}: its p99 is at {used:.0%} of the target)"


_LABELS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E", "unfinished": "finishing"}

_IN_EVERY_GAP = (
    *("decode_weight_reads", "decode_state_reads", "communication", "launch_and_host"),
    "remainder",
)

# share of the time at capacity that light load must have for load not to be the cause
_MOSTLY = 0.6

_MOST = 0.5  # share of the misses

# How a request waits or works in each account, for a sentence about one metric.
_PHRASES = {
    "api_server": "the API server receives requests and sends answers",
    "admission_queue": "requests wait for a place in the batch",
    "scheduling_wait": "requests wait for the step in flight",
    "cache_load": "prefixes are loaded from the cache",
    "prefill_compute": "the requests' own prefill computes",
    "prefill_memory": "the requests' own prefill reads memory",
    "decode_weight_reads": "decodes read the weights",
    "decode_state_reads": "decodes read the KV cache",
    "communication": "GPUs exchange what they computed",
    "launch_and_host": "the GPU waits for the host",
    "others_prefill": "decodes wait for others' prefill",
    "kv_transfer": "KV moves from the prefill to the decode engines",
    "preemption_recompute": "preempted requests are computed again",
    "preemption_swap": "preempted requests' KV cache moves to the host and back",
    "failure_rework": "requests were sent before, to no use",
    "remainder": "small operators run",
}


def binding(
    rows: Sequence[Row], capacity: float, targets: dict[str, float], *, by_queue: bool = False
) -> dict[str, Any]:
    """Return the target that ends the range, the accounts behind it, and the engines' state there.

    ``rows`` is the curve, ``targets`` maps metrics to seconds. Accounts are those of the slowest
    requests by that metric, limited to the share that may miss the SLO, at the capacity and at the
    lightest load. With ``by_queue`` the queue ends the range, not a target, and the accounts are
    those of E2E.
    """
    at, light = nearest(rows, capacity, stable=by_queue), rows[0]
    metric, share = ("e2e", None) if by_queue else _first_missed(at, targets)
    accounts = _accounts(at, light, metric)
    found: dict[str, Any] = {
        "level": at["level"],
        "light_level": light["level"],
        "metric": metric,
        "missed_by": _miss_shares(at),
        "accounts": accounts,
        "state": at["state"],
        "light_state": light["state"],
        "latency_s": at["latency_s"],
    }
    # What is in every gap between tokens makes no single one longer than the others.
    own = [row for row in accounts if metric != "itl" or row["account"] not in _IN_EVERY_GAP]
    cause = _cause(own or accounts)
    found["cause"] = None if cause is None else cause["account"]
    head = "The queue binds, not the SLO" if by_queue else _head(metric, share, targets)
    lost = found["missed_by"].get("unfinished", 0.0)
    if lost > _MOST:
        return found | _lost(lost, at["reject_reasons"])
    label = "the time between tokens" if metric == "itl" else _LABELS[metric]
    found["sentence"] = _sentence(head, label, accounts, cause)
    found["advice"] = advice(found, targets)
    return found


def _lost(share: float, reasons: dict[str, int]) -> dict[str, str]:
    """Describe the case in which most misses are requests that the engine did not serve at all."""
    sentence = f"{percent(share)} of the requests that miss the SLO were rejected or never ended"
    if reasons:
        sentence += f" ({max(reasons, key=lambda reason: reasons[reason])})"
    return {"sentence": f"{sentence}.", "advice": "No load changes what an engine cannot hold."}


def _first_missed(at: Row, targets: dict[str, float]) -> tuple[str, float | None]:
    """Return the target that most misses miss and their share; without misses, the only target
    or E2E."""
    shares = {name: share for name, share in _miss_shares(at).items() if name in targets}
    if shares and max(shares.values()) > 0:
        metric = max(shares, key=lambda name: shares[name])
        return metric, shares[metric]
    return (next(iter(targets)) if len(targets) == 1 else "e2e"), None


def _miss_shares(at: Row) -> dict[str, float]:
    missed = at["missed"]
    return {name: count / missed for name, count in at["missed_by"].items()} if missed else {}


def _accounts(at: Row, light: Row, metric: str) -> list[dict[str, Any]]:
    """Return the accounts of the slowest requests: seconds, share, and growth since light load."""
    here = at["accounts_s"].get(metric, {}).get("tail", {})
    there = light["accounts_s"].get(metric, {}).get("tail", {})
    total = sum(here.values())
    return [
        {
            "account": name,
            "seconds": here[name],
            "light_seconds": there.get(name, 0.0),
            "share": here[name] / total,
            "growth_s": here[name] - there.get(name, 0.0),
        }
        for name in TIME_ACCOUNTS
        if total and (here.get(name) or there.get(name))
    ]


def _cause(accounts: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the account that grew most since light load, or the largest if light load explains
    most."""
    if not accounts:
        return None
    total_s, light_s = (sum(row[name] for row in accounts) for name in ("seconds", "light_seconds"))
    by = "growth_s" if light_s < _MOSTLY * total_s else "seconds"
    return max(accounts, key=lambda row: float(row[by]))


def _head(metric: str, share: float | None, targets: dict[str, float]) -> str:
    head = f"{_LABELS[metric]} binds"
    if share is not None and len(targets) > 1:
        head += f" (missed by {percent(share)} of the requests that miss the SLO)"
    return head


def _sentence(
    head: str, label: str, accounts: list[dict[str, Any]], cause: dict[str, Any] | None
) -> str:
    if cause is None:
        return f"{head}."
    largest = max(accounts, key=lambda row: row["seconds"])
    parts = [
        f"{_PHRASES[cause['account']]} ({whole_percent(cause['share'])} of {label} of the slowest)"
    ]
    if largest is not cause:
        part = f"{humanised(largest['account'])} ({whole_percent(largest['share'])})"
        parts.append(f"the largest part is {part}")
    return f"{head}: {'; '.join(parts)}."
