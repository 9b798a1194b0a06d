"""What one would change first, as far as the accounts of the slowest requests show it."""

from __future__ import annotations

from typing import Any

_OFTEN = 0.01  # share of time at a limit, or of requests preempted, that shows in the tail
_FULL = 0.97  # of the KV cache
_MUCH = 0.05  # of the time in full steps, for their size to be what holds prompts back
_ROOM = 0.8  # of a target that the 99th percentile may take, for there to be room

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
    "kv_transfer": "KV is waited for on its way to the decode engines: faster links, pushing it "
    "while it is computed, or prefill and decode in one pool take that away",
    "preemption_recompute": "The KV cache overflows: more of it (gpu_memory_utilization, "
    "kv.cache_dtype fp8, tensor parallelism) or a lower max_num_seqs ends the preemptions",
    "preemption_swap": "The KV cache overflows to the host: more of it (gpu_memory_utilization, "
    "kv.cache_dtype fp8, tensor parallelism) or a lower max_num_seqs ends the preemptions",
    "remainder": "Larger batches run larger kernels: more replicas share them",
}


def advice(found: dict[str, Any], targets: dict[str, float]) -> str:
    """A sentence on the account behind the target that binds: a hint, not a promise."""
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
    """Whether another target leaves room for a trade."""
    p99_s = found["latency_s"].get(metric, {}).get("p99")
    if metric not in targets or p99_s is None:
        return ""
    used = p99_s / targets[metric]
    room = "has room" if used < _ROOM else "has little room"
    return f" ({metric.upper()} {room}: its p99 is at {used:.0%} of the target)"
