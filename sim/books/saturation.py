"""Where engines would saturate under this mix of requests: a fluid estimate without simulation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.arrays import Int64
from sim.clock import to_s
from sim.engine.config import EngineConfig, Speculation
from sim.fleet.cluster import RunLog
from sim.fleet.config import PoolConfig
from sim.fleet.handover import TransferConfig
from sim.kv.layout import PLAIN
from sim.protocols import StepCost
from sim.recorder import UNSET
from sim.request import Request
from sim.shape import SharedSums, StepShape
from sim.step_log import StepLog

_SAMPLED = 200
"""Number of requests whose drafts stand for those of all requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation:
    """Distance to saturation. With ``load`` near or above 1, queues grow without bound."""

    offered_per_s: float | None
    """Arrival rate over the span of the arrivals; None for closed loops and single requests."""
    by_part_per_s: dict[str, float]
    """Saturation rate of the engines of each role, and of the network that KV crosses between
    them; the least is the fleet's."""

    @property
    def saturation_per_s(self) -> float:
        """Requests per second at which all batches are as full as they can be, or the network is
        full."""
        return min(self.by_part_per_s.values())

    @property
    def load(self) -> float | None:
        """Offered rate over saturation rate."""
        if self.offered_per_s is None:
            return None
        return self.offered_per_s / self.saturation_per_s


def saturation(log: RunLog) -> Saturation | None:
    """Estimate saturation from the mean request of a run, rejected ones excluded; None without
    requests.

    The batch holds as many sequences as ``running_seq_limit`` and the KV pool allow, each at half
    of its output; as many requests are prefilled per step as finish in one. A step lasts as long as
    the busier of GPU and host. A test compares it with the throughput of simulated overload.

    Pools of one role add up, assuming a router that sends each pool what it can bear. Prefill
    engines are limited by prompts, decode engines by what follows; blocks that prefill engines hold
    until their KV has moved are ignored.
    """
    admitted = np.frombuffer(log.requests.first_row, np.int64) != UNSET
    if not admitted.any():
        return None
    by_part_per_s: dict[str, float] = {}
    replicas = 0
    for pool in log.fleet.pools:
        steps = log.steps[replicas : replicas + pool.replicas]
        replicas += pool.replicas
        of_pool = _pool_per_s(log, pool, steps, admitted)
        if of_pool is None:
            return None
        by_part_per_s[pool.role] = by_part_per_s.get(pool.role, 0.0) + of_pool
    if log.fleet.transfer is not None:
        by_part_per_s["network"] = _network_per_s(log, log.fleet.transfer, admitted)
    return Saturation(offered_per_s=_offered_per_s(log), by_part_per_s=by_part_per_s)


def _network_per_s(log: RunLog, transfer: TransferConfig, admitted: NDArray[np.bool_]) -> float:
    """Return the requests/s whose KV fits through the network; prefixes cached on decode engines
    count."""
    moves = log.table.output_tokens[admitted] > 1  # an answer of one token needs no decode engine
    tokens = log.table.prompt_tokens[admitted] * moves
    mean_bytes = transfer.bytes_per_token * tokens.mean() + transfer.fixed_bytes * moves.mean()
    if not mean_bytes:
        return math.inf
    roles = [pool.role for pool in log.fleet.pool_of]
    limits = [
        transfer.prefill_nic_bytes_per_s * roles.count("prefill"),
        transfer.decode_nic_bytes_per_s * roles.count("decode"),
    ]
    if transfer.core_bytes_per_s is not None:
        limits.append(transfer.core_bytes_per_s)
    return float(min(limits) / mean_bytes)


def _pool_per_s(
    log: RunLog, pool: PoolConfig, steps: list[StepLog], admitted: NDArray[np.bool_]
) -> float | None:
    """Return the requests/s that a pool bears of its part of each request; None if it has no
    part."""
    config = pool.engine
    prompt = log.table.prompt_tokens[admitted]
    cached = np.frombuffer(log.requests.cached_tokens, np.int64)[admitted]
    if pool.role == "decode":
        cached = prompt
    computed = (prompt - cached).astype(float)
    pairs = float((computed * cached + computed * (computed + 1) / 2).mean())
    # Over all answers: the first token of each comes from the prefill.
    given = np.maximum((log.table.all_output_tokens - log.table.num_answers)[admitted], 0)
    widths = log.table.beam_widths[admitted]
    decodes = float((given * widths).mean())
    if pool.role == "prefill":
        decodes = 0.0
    if not decodes and not computed.any():
        return None
    context = float(prompt.mean()) + float(
        np.maximum(log.table.output_tokens[admitted] - 1, 0).mean() / 2
    )
    # For beam search: one whole hypothesis and what the others hold alone, for ``width`` sequences.
    context += float(log.table.beam_own_tokens[admitted].mean())
    fitting = float(widths.mean()) * _sequences_that_fit(config, context, float(prompt.mean()))
    batch = _full_batch(log, config, admitted, float(computed.mean()), decodes, fitting)
    prefills, drafts = batch.prefills, batch.drafts
    seqs = min(batch.seqs, config.step_token_limit // (1 + drafts))
    # A step has a whole number of prefills, with steps without any between them; or the mean prompt
    # takes several steps, each with a part of its tokens.
    parts = 1.0
    if prefills < 1 and computed.any():
        room = config.step_token_limit - seqs * (1 + drafts)
        if room < 1:
            return None
        parts = max(1.0, float(computed.mean()) / room)
    a_step = 1.0 / parts if prefills < 1 else float(math.ceil(prefills))
    if pool.role == "prefill":
        a_step = prefills
    before = float(cached.mean()) * parts + float(computed.mean()) * (parts - 1) / 2
    per_prefill = (computed.mean(), before, pairs)
    new, context_read, new_pairs = (round(a_step * value) for value in per_prefill)
    new = min(new, config.step_token_limit - round(seqs) * (1 + drafts))
    decoded = np.maximum(log.table.output_tokens[admitted] - 1, 0)
    clipped, more_clipped = list[int](), list[int]()
    for clip in config.clip_tokens:
        # Decodes at their mean context; chunks as in the sums above.
        start = cap_pairs = 0.0
        if isinstance(clip, tuple):
            a_decode = _kept_of_prompts(prompt, decoded, clip).sum()
        else:
            a_decode = _clipped_pairs(prompt, decoded, clip).sum()
            start = np.minimum(cached, clip).mean()
            cap_pairs = _clipped_pairs(cached, prompt - cached, clip).mean()
        a_decode /= max(int(decoded.sum()), 1)
        clipped += (round(seqs * a_decode), 0, 0, 0)
        more_clipped += (
            round(seqs * a_decode),
            0,
            round(a_step * start),
            round(a_step * cap_pairs),
        )
    decoding = StepShape(
        round(seqs), round(seqs * context), logits=round(seqs), clipped=tuple(clipped)
    )
    if config.speculation is not None:
        verified = round(seqs) * drafts
        rises = (0 for clip in config.clip_tokens if isinstance(clip, int))
        logits, speculated = round(seqs) + verified, (verified, 0, 0, *rises)
        decoding = decoding._replace(logits=logits, speculated=speculated)
    if config.shared_prefix_attention != "none":
        decoding = decoding._replace(shared=_shared(steps, decoding))
    mixed = decoding._replace(
        clipped=tuple(more_clipped),
        prefill_seqs=math.ceil(a_step),
        prefill_tokens=new,
        prefill_context_tokens=context_read,
        prefill_pairs=new_pairs,
        logits=decoding.logits + min(math.ceil(a_step), config.running_seq_limit - round(seqs)),
    )
    share = 0.0 if pool.role == "decode" else prefills / a_step
    mixed_s, decoding_s = (_step_s(pool.cost, config, shape) for shape in (mixed, decoding))
    step_s = share * mixed_s + (1 - share) * decoding_s
    return pool.replicas * prefills / step_s


class _Batch(NamedTuple):
    """A step that is as full as it can be; as many requests are prefilled as finish."""

    prefills: float
    seqs: float
    """Decoding sequences."""
    drafts: int
    """Drafts of each sequence."""


def _full_batch(
    log: RunLog,
    config: EngineConfig,
    admitted: NDArray[np.bool_],
    computed: float,
    decoded: float,
    fitting: float,
) -> _Batch:
    """Return the batch of requests that compute and decode so many tokens on average, of which
    ``fitting`` sequences fit into the KV pool."""

    def batch(decodes: float, drafts: int) -> _Batch:
        prefills = config.step_token_limit / (computed + decodes * (1 + drafts))
        if decodes:
            prefills = min(prefills, min(config.running_seq_limit, fitting) / decodes)
        return _Batch(prefills, prefills * decodes, drafts)

    if config.speculation is None:
        return batch(decoded, 0)
    seqs = math.inf
    for _ in range(3):  # drafts depend on the batch, and the batch on the room that drafts leave
        drafts = config.speculation.drafts(round(min(seqs, config.running_seq_limit)))
        decodes = decoded / _tokens_per_step(log, config.speculation, admitted, drafts)
        found = batch(decodes, drafts)
        seqs = found.seqs
    return found


def _tokens_per_step(
    log: RunLog, speculation: Speculation, admitted: NDArray[np.bool_], drafts: int
) -> float:
    """Return the tokens that a decode step with ``drafts`` drafts gives, over some of the run's
    requests."""
    chosen = np.flatnonzero(admitted & (log.table.output_tokens > 1))
    given = steps = 0
    tenants = log.table.tenant
    for index in chosen[:: max(1, len(chosen) // _SAMPLED)].tolist():
        length = int(log.table.output_tokens[index])
        request = Request(index, 0, 1, length, tenant=int(tenants[index]))
        given += length - 1
        steps += len(speculation.acceptance.gains(request, 1, drafts))
    return given / steps if steps else 1.0


def _shared(logs: list[StepLog], decoding: StepShape) -> tuple[int, int, int]:
    """Return what a full batch shares: the share of its contexts, and the tokens of prefixes, seen
    in the run.

    Both are means over the run's steps.
    """
    names = ("decode_seqs", "decode_context_tokens", *SharedSums._fields)
    weights = [steps.column("steps") for steps in logs]
    seqs, context, tokens, reads, parts = (
        sum(float(steps.column(name) @ w) for steps, w in zip(logs, weights, strict=True))
        for name in names
    )
    if not seqs or not context:
        return 0, 0, 0
    shared = decoding.decode_context_tokens * tokens / context
    decode_steps = sum(
        float(w[steps.column("decode_seqs") > 0].sum())
        for steps, w in zip(logs, weights, strict=True)
    )
    reads_per_step = min(reads / decode_steps, shared)
    if not reads_per_step:
        return 0, 0, 0
    return round(shared), round(reads_per_step), round(decoding.decode_seqs * parts / seqs)


def _sequences_that_fit(config: EngineConfig, context: float, prompt: float) -> float:
    """Return the decoding sequences with a mean context and prompt that the KV pool holds."""
    usable = config.replica_blocks - 1
    if config.kv_layout == PLAIN:
        return usable * config.block_size / context
    return usable / config.kv_layout.pages(
        math.ceil(context), config.block_size, min(math.ceil(prompt), math.ceil(context))
    )


def _clipped_pairs(start: Int64, tokens: Int64, cap_tokens: int) -> Int64:
    """Return `causal_pairs_clipped` for many prompts: ``[n]``."""

    def up_to(length: Int64) -> Int64:
        inside = np.minimum(length, cap_tokens)
        found: Int64 = inside * (inside + 1) // 2 + (length - inside) * cap_tokens
        return found

    return up_to(start + tokens) - up_to(start)


def _kept_of_prompts(prompt: Int64, decoded: Int64, budgets: tuple[int, ...]) -> Int64:
    """Return what is kept of prompts within budgets, plus all generated tokens: ``[n]``."""
    kept = sum((np.minimum(prompt, budget) for budget in budgets), np.zeros_like(prompt))
    found: Int64 = decoded * kept + len(budgets) * (decoded * (decoded + 1) // 2)
    return found


def _step_s(cost: StepCost, config: EngineConfig, shape: StepShape) -> float:
    seqs = min(shape.decode_seqs + shape.prefill_seqs, config.running_seq_limit)
    price = cost.price(shape)
    if cost.throttle is not None and price.compute_ns:
        gpu_ns = price.gpu_ns + cost.throttle.lasting_ns(price.gpu_ns, price.compute_ns)
        price = price._replace(gpu_ns=gpu_ns)
    planning_ns = cost.schedule_ns(seqs) + cost.update_ns(seqs)
    if config.async_scheduling:
        return to_s(max(price.gpu_ns, planning_ns + price.launch_ns))
    gpu_ns = max(price.launch_delay_ns + price.gpu_ns, price.launch_ns + price.tail_ns)
    return to_s(planning_ns + gpu_ns)


def _offered_per_s(log: RunLog) -> float | None:
    arrival_ns = log.table.arrival_ns
    if not log.table.is_open_loop or len(arrival_ns) < 2:
        return None
    span_s = to_s(int(arrival_ns[-1] - arrival_ns[0]))
    return (len(arrival_ns) - 1) / span_s if span_s else None
