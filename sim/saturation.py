"""Where this engine would saturate under this mix of requests: a fluid estimate, no simulation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.clock import to_s
from sim.cluster import RunLog
from sim.engine_view import EngineConfig
from sim.kv_layout import PLAIN
from sim.protocols import StepCost
from sim.recorder import UNSET
from sim.request import Request
from sim.shape import SharedSums, StepShape
from sim.speculation import Speculation

Int64 = NDArray[np.int64]

_SAMPLED = 200
"""Requests whose drafts stand for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation:
    """Distance to saturation. ``load`` near or above 1: queues grow without bound."""

    offered_per_s: float | None
    """Arrival rate over the span of the arrivals; None for closed loops and single requests."""
    saturation_per_s: float
    """Requests per second at which all replicas' batches are as full as they can be."""

    @property
    def load(self) -> float | None:
        """Offered over saturation rate."""
        if self.offered_per_s is None:
            return None
        return self.offered_per_s / self.saturation_per_s


def saturation(log: RunLog) -> Saturation | None:
    """Estimate from the mean request of the run (rejected ones left out); None without requests.

    The batch holds as many sequences as ``max_num_seqs`` and the KV pool allow, each at half of
    its output; as many requests are prefilled a step as finish in one. A step lasts as long as
    the busier of GPU and host. A test holds it to the throughput of simulated overload.
    """
    admitted = np.frombuffer(log.requests.first_row, np.int64) != UNSET
    if not admitted.any():
        return None
    config = log.pool.engine
    prompt = log.table.prompt_tokens[admitted]
    cached = np.frombuffer(log.requests.cached_tokens, np.int64)[admitted]
    computed = (prompt - cached).astype(float)
    pairs = float((computed * cached + computed * (computed + 1) / 2).mean())
    # Of all answers: the first token of each comes of the prompt.
    firsts = 1 if log.table.samples is None else 1 + np.diff(log.table.samples.offsets)[admitted]
    decodes = float(np.maximum(log.table.all_output_tokens[admitted] - firsts, 0).mean())
    context = float(prompt.mean()) + float(
        np.maximum(log.table.output_tokens[admitted] - 1, 0).mean() / 2
    )

    fitting = _sequences_that_fit(config, context, float(prompt.mean()))
    # Drafts depend on the batch, the batch on the tokens that drafts leave room for.
    drafts, seqs, tokens = 0, math.inf, decodes
    for _ in range(1 if config.speculation is None else 3):
        if config.speculation is not None:
            drafts = config.speculation.drafts(round(min(seqs, config.max_num_seqs)))
            decodes = tokens / _tokens_a_step(log, config.speculation, admitted, drafts)
        a_prefill = float(computed.mean()) + decodes * (1 + drafts)
        prefills = config.max_num_batched_tokens / a_prefill
        if decodes:
            prefills = min(prefills, min(config.max_num_seqs, fitting) / decodes)
        seqs = prefills * decodes
    # A step has a whole number of prefills; between them are steps with none.
    a_step = max(1, math.ceil(prefills))
    per_prefill = (computed.mean(), float(cached.mean()), pairs)
    new, context_read, new_pairs = (round(a_step * value) for value in per_prefill)
    new = min(new, config.max_num_batched_tokens - round(seqs) * (1 + drafts))
    decoded = np.maximum(log.table.output_tokens[admitted] - 1, 0)
    clipped, more_clipped = list[int](), list[int]()
    for clip in config.clip_tokens:
        # Of a decode's mean context; of a chunk, as of its sums above.
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
        decoding = decoding._replace(shared=_shared(log, decoding))
    mixed = decoding._replace(
        clipped=tuple(more_clipped),
        prefill_seqs=a_step,
        prefill_tokens=new,
        prefill_context_tokens=context_read,
        prefill_pairs=new_pairs,
        logits=decoding.logits + min(a_step, config.max_num_seqs - round(seqs)),
    )
    share = prefills / a_step
    mixed_s, decoding_s = (_step_s(log.pool.cost, config, shape) for shape in (mixed, decoding))
    step_s = share * mixed_s + (1 - share) * decoding_s
    return Saturation(
        offered_per_s=_offered_per_s(log),
        saturation_per_s=log.pool.replicas * prefills / step_s,
    )


def _tokens_a_step(
    log: RunLog, speculation: Speculation, admitted: NDArray[np.bool_], drafts: int
) -> float:
    """Tokens that a decode step with so many drafts gives, of some of the run's requests."""
    chosen = np.flatnonzero(admitted & (log.table.output_tokens > 1))
    given = steps = 0
    for index in chosen[:: max(1, len(chosen) // _SAMPLED)].tolist():
        tenant = 0 if log.table.class_index is None else int(log.table.class_index[index])
        length = int(log.table.output_tokens[index])
        request = Request(index, 0, 1, length, tenant=tenant)
        given += length - 1
        steps += len(speculation.acceptance.gains(request, 1, drafts))
    return given / steps if steps else 1.0


def _shared(log: RunLog, decoding: StepShape) -> tuple[int, int, int]:
    """What a full batch shares: of its contexts the share, of prefixes the tokens, that were seen.

    Means over the run's steps.
    """
    names = ("decode_seqs", "decode_context_tokens", *SharedSums._fields)
    weights = [steps.column("steps") for steps in log.steps]
    seqs, context, tokens, reads, parts = (
        sum(float(steps.column(name) @ w) for steps, w in zip(log.steps, weights, strict=True))
        for name in names
    )
    if not seqs or not context:
        return 0, 0, 0
    shared = decoding.decode_context_tokens * tokens / context
    decode_steps = sum(
        float(w[steps.column("decode_seqs") > 0].sum())
        for steps, w in zip(log.steps, weights, strict=True)
    )
    reads_a_step = min(reads / decode_steps, shared)
    if not reads_a_step:
        return 0, 0, 0
    return round(shared), round(reads_a_step), round(decoding.decode_seqs * parts / seqs)


def _sequences_that_fit(config: EngineConfig, context: float, prompt: float) -> float:
    """Decoding sequences of a mean context, and prompt, that the KV pool holds."""
    usable = config.num_gpu_blocks - 1
    if config.kv_layout == PLAIN:
        return usable * config.block_size / context
    return usable / config.kv_layout.pages(
        math.ceil(context), config.block_size, min(math.ceil(prompt), math.ceil(context))
    )


def _clipped_pairs(start: Int64, tokens: Int64, cap_tokens: int) -> Int64:
    """`causal_pairs_clipped` of many at once: ``[n]``."""

    def up_to(length: Int64) -> Int64:
        inside = np.minimum(length, cap_tokens)
        found: Int64 = inside * (inside + 1) // 2 + (length - inside) * cap_tokens
        return found

    return up_to(start + tokens) - up_to(start)


def _kept_of_prompts(prompt: Int64, decoded: Int64, budgets: tuple[int, ...]) -> Int64:
    """The same of what is kept of prompts, and all that is generated."""
    kept = sum((np.minimum(prompt, budget) for budget in budgets), np.zeros_like(prompt))
    found: Int64 = decoded * kept + len(budgets) * (decoded * (decoded + 1) // 2)
    return found


def _step_s(cost: StepCost, config: EngineConfig, shape: StepShape) -> float:
    seqs = min(shape.decode_seqs + shape.prefill_seqs, config.max_num_seqs)
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
