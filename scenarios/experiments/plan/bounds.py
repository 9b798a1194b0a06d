"""Proven bounds on what any fleet of a candidate can do, so that a search can skip simulations.

Everything is bounded on the very requests that the first run of a fleet would serve: the least time
that their prompts and answers take on idle engines, and the least GPU time that all of them take
together (`costmodels.steps.bounds`). If the bounds alone miss a target, every fleet misses it;
if a number of engines cannot do the work by the times that the targets allow, fewer engines cannot
either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.steps.bounds import StepBounds
from scenarios.build.pools import PoolBuild
from scenarios.experiments.plan.candidates import Candidate
from scenarios.experiments.plan.targets import percentile_of
from scenarios.schema.plan import Target
from sim.arrays import Float64
from sim.books.metrics import TARGETS
from sim.kv.layout import PLAIN
from sim.request_table import PrefixChains, RequestTable

Bool = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of a candidate, at the load that is planned for."""

    units: int
    """The fewest units that could do the work in time."""
    least_s: tuple[float, ...]
    """Target by target: the percentile that an idle fleet cannot go below."""
    refused: int | None
    """The target that no number of units can meet; None: none is ruled out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """The requests as a fleet sees them, float64 ``[n]``."""

    arrival_s: Float64
    prompt: Float64
    decodes: Float64
    """Tokens after the first."""
    context: Float64
    """Sum of the contexts that the request's decodes read."""


class _Role(NamedTuple):
    """One kind of engine of a candidate."""

    name: str
    part: PoolBuild
    bounds: StepBounds
    shares: bool
    """Whether requests may share prefixes."""


class _Due(NamedTuple):
    """When work must be done: ``[n]`` s, infinite where no target says."""

    prompt_by: Float64
    answer_by: Float64
    missed: int
    """Requests that may miss, over all targets together."""


def find_bounds(
    candidate: Candidate,
    parts: Sequence[PoolBuild],
    table: RequestTable,
    counted: Bool,
    targets: Sequence[Target],
) -> Bounds:
    """Return bounds over the requests that count; ``parts`` are the candidate's pools, built.

    In a closed loop, or if clients retry, only latencies are bounded. Engines that speculate have
    no bounds at all, because the tokens that a step gives are drawn.
    """
    if any(part.replica.cost.drafts_by_seqs for part in parts):
        return Bounds(units=1, least_s=(0.0,) * len(targets), refused=None)
    outputs = table.output_tokens[counted].astype(np.float64)
    prompt = table.prompt_tokens[counted].astype(np.float64)
    decodes = np.maximum(outputs - 1, 0.0)
    work = _Work(
        arrival_s=table.arrival_ns[counted] / 1e9,
        prompt=prompt,
        decodes=decodes,
        context=decodes * prompt + decodes * (decodes - 1) / 2,
    )
    least = [part.replica.cost.bounds(part.pool.engine.step_token_limit) for part in parts]
    shares = table.chains is not None
    # The first engine takes the prompts, the last the answers; without P/D they are one engine.
    computed = work.prompt
    if table.chains is not None and parts[0].pool.engine.enable_prefix_caching:
        computed = np.maximum(work.prompt - _shared_tokens(table.chains)[counted], 1.0)
    prompts_s = least[0].prompt_ns(computed) / 1e9
    decode_s = least[-1].decode_ns(work.prompt + np.maximum(decodes - 1, 0) / 2) / 1e9
    decode_s = np.where(decodes > 0, decode_s, 0.0)
    held = np.ones(len(prompt), bool)
    for part in parts:
        held &= prompt + outputs <= part.pool.engine.max_model_len
    latency_s = {
        "ttft": np.where(held, prompts_s, np.inf),
        "tpot": np.where(held, decode_s, np.inf),
        "itl": np.where(held, 0.0, np.inf),  # steps between may be shorter than their mean
        "e2e": np.where(held, prompts_s + decodes * decode_s, np.inf),
    }
    masks = [_of_class(target, table, counted) for target in targets]
    least_s = tuple(
        percentile_of(latency_s[target.metric][mask], target.share)
        for target, mask in zip(targets, masks, strict=True)
    )
    refused = [i for i, target in enumerate(targets) if least_s[i] > target.within_s]
    units = 1
    if table.is_open_loop and candidate.scenario.clients is None and not refused:
        due = _deadlines(work, targets, masks)
        for engine, part, bounds in zip(candidate.engines, parts, least, strict=True):
            role = _Role(engine.role, part, bounds, shares)
            needed = _engines(role, work, computed, due)
            units = max(units, math.ceil(needed / engine.count - 1e-9))
    return Bounds(units=units, least_s=least_s, refused=refused[0] if refused else None)


def _shared_tokens(chains: PrefixChains) -> Float64:
    """Return the tokens of each request, ``[n]``, that a cache may hold: those in shared blocks.

    All other tokens are computed for the first time, and by their request alone.
    """
    _, which, counts = np.unique(chains.ids, return_inverse=True, return_counts=True)
    before = np.concatenate([[0], np.cumsum(counts[which] > 1)])
    blocks = before[chains.offsets[1:]] - before[chains.offsets[:-1]]
    found: Float64 = (blocks * chains.block_tokens).astype(np.float64)
    return found


def _of_class(target: Target, table: RequestTable, counted: Bool) -> Bool:
    if target.of_class is None or table.class_index is None:
        return np.ones(int(counted.sum()), bool)
    own: Bool = table.class_index[counted] == table.class_names.index(target.of_class)
    return own


def _engines(role: _Role, work: _Work, computed: Float64, due: _Due) -> float:
    """Return the engines of a role below which the work cannot be done in time for the targets."""
    none = np.zeros_like(computed)
    needed = 0.0
    for by, answers in ((due.prompt_by, False), (due.answer_by, True)):
        wanted = np.isfinite(by)
        if not wanted.any() or (role.name == "decode" and not answers):
            continue
        prompts = none if role.name == "decode" else computed
        decodes = work.decodes if answers and role.name != "prefill" else none
        busy_s = _busy_s(role, work, prompts, decodes, wanted)
        order = np.argsort(by[wanted], kind="stable")
        # The requests that may miss are assumed to be those with most work.
        left_s = np.cumsum(busy_s[order]) - np.sort(busy_s)[::-1][: due.missed].sum()
        span_s = by[wanted][order] - work.arrival_s[wanted].min()
        needed = max(needed, float((left_s / np.maximum(span_s, 1e-9)).max()))
    return needed


def _deadlines(work: _Work, targets: Sequence[Target], masks: Sequence[Bool]) -> _Due:
    due = {metric: np.full(len(work.prompt), np.inf) for metric in TARGETS}
    missed = 0
    for target, mask in zip(targets, masks, strict=True):
        due[target.metric][mask] = np.minimum(due[target.metric][mask], target.within_s)
        missed += math.floor((1 - target.share) * int(mask.sum()) + 1e-9)
    prompt_by = work.arrival_s + np.minimum(due["ttft"], due["e2e"])
    with np.errstate(invalid="ignore"):
        after_s = np.where(work.decodes > 0, work.decodes * due["tpot"], 0.0)
    answer_by = work.arrival_s + np.minimum(due["ttft"] + after_s, due["e2e"])
    return _Due(prompt_by, answer_by, missed)


def _busy_s(role: _Role, work: _Work, prompts: Float64, decodes: Float64, wanted: Bool) -> Float64:
    """Return GPU time of each wanted request, such that the sum bounds all of them together."""
    engine, bounds = role.part.pool.engine, role.bounds
    share = np.where(work.decodes > 0, decodes / np.maximum(work.decodes, 1), 0.0)
    context = (work.context * share)[wanted]
    prompts, decodes = prompts[wanted], decodes[wanted]
    tokens = prompts + decodes
    # Each step has limits on decoding sequences and tokens, and what it reads must fit.
    steps = [decodes / engine.running_seq_limit, tokens / engine.step_token_limit]
    if engine.kv_layout == PLAIN and not (role.shares and engine.enable_prefix_caching):
        steps.append(context / ((engine.replica_blocks - 1) * engine.block_size))
    fewest = max(steps, key=lambda of: float(of.sum()))
    totals = bounds.lines[:, 0] * fewest.sum() + bounds.lines[:, 1] * tokens.sum()
    a_step, a_token = bounds.lines[int(np.argmax(totals))]
    pairs = prompts * (prompts + 1) / 2
    busy_ns = a_step * fewest + a_token * tokens
    found: Float64 = (busy_ns + bounds.context_ns * context + bounds.pair_ns * pairs) / 1e9
    return found
