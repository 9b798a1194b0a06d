"""Generate a workload: arrivals, lengths, and what prompts have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.arrays import Int64
from sim.clock import NS_PER_S
from sim.request_table import UNLIMITED, PrefixChains, RequestTable
from workloads.generator.chain_ids import Lineage, build_chains
from workloads.generator.distributions import sample_tokens, stream
from workloads.generator.sessions import continue_earlier, grow_contexts
from workloads.generator.shared_prefixes import Prefixes, draw_prefixes
from workloads.generator.spec import GeneratorSpec, RequestKind
from workloads.generator.timeline import NONE, Timeline, draw_timeline


@dataclass(slots=True, kw_only=True, eq=False)
class _Contents:
    """Lengths and prefixes of the ``n`` requests of a timeline, kept or not."""

    prompt: Int64
    output: Int64
    parent: Int64
    """The row that each row continues; NONE if it begins with its shared prefix."""
    shared: Int64
    """Leading tokens in common with the parent."""
    prefixes: list[tuple[Int64, Prefixes, Prefixes]]
    """For each kind: its rows, their shared prefixes, and these before they were cut to the
    prompt."""


def generate(spec: GeneratorSpec, seed: int) -> RequestTable:
    """Draw the workload; equal specs and seeds give equal tables.

    Every quantity has a random stream of its own: changing one leaves the others alone, and the
    first m requests of a longer run are the shorter run. Requests stand in the order of their
    nominal times (see `workloads.generator.timeline`), which are the earliest possible times of
    turns that wait for an answer. Raises ScenarioError for a negative seed.
    """
    timeline = draw_timeline(spec, seed)
    contents = _draw_contents(spec, timeline, seed)
    kept = timeline.kept
    place = np.full(len(timeline) + 1, NONE)  # row in the table; the last entry is for NONE
    place[kept] = np.arange(len(kept))
    waits = spec.has_turns or spec.users is not None
    has_sessions = any(kind.sessions is not None for kind in spec.kinds)
    return RequestTable(
        arrival_ns=timeline.nominal_ns[kept],
        prompt_tokens=contents.prompt[kept],
        output_tokens=contents.output[kept],
        priority=np.zeros(len(kept), np.int64),
        chains=_chains(spec, timeline, contents, place),
        max_concurrency=UNLIMITED if spec.max_concurrency is None else spec.max_concurrency,
        after=place[timeline.after[kept]] if waits else None,
        think_ns=timeline.think_ns[kept] if waits else None,
        session=timeline.start[kept] if has_sessions else None,
        source=f"{spec.source} (seed {seed})",
    )


def _draw_contents(spec: GeneratorSpec, timeline: Timeline, seed: int) -> _Contents:
    n = len(timeline)
    contents = _Contents(
        prompt=np.ones(n, np.int64),
        output=np.zeros(n, np.int64),
        parent=np.full(n, NONE),
        shared=np.zeros(n, np.int64),
        prefixes=[],
    )
    uniforms = [stream(seed, name).random(n) for name in ("prompt_tokens", "output_tokens")]
    for index, kind in enumerate(spec.kinds):
        rows = np.arange(n) if len(spec.kinds) == 1 else np.flatnonzero(timeline.kind == index)
        lengths = _draw_lengths(kind, timeline.turn[rows], *(u[rows] for u in uniforms))
        _draw_kind(kind, timeline, contents, rows, *lengths, seed)
    return contents


def _draw_lengths(
    kind: RequestKind,
    turn: Int64,
    prompt_uniforms: np.ndarray,
    output_uniforms: np.ndarray,
) -> tuple[Int64, Int64]:
    """Draw, for the requests of one kind, their own prompt tokens and their output tokens."""
    own = sample_tokens(kind.prompt_tokens, prompt_uniforms)
    output = sample_tokens(
        kind.output_tokens, prompt_uniforms if kind.is_paired else output_uniforms
    )
    if kind.sessions is not None and kind.sessions.new_tokens is not None:
        later = turn > 0
        own[later] = sample_tokens(kind.sessions.new_tokens, prompt_uniforms[later])
    return own, output


def _draw_kind(
    kind: RequestKind,
    timeline: Timeline,
    contents: _Contents,
    rows: Int64,
    own: Int64,
    output: Int64,
    seed: int,
) -> None:
    """Fill in prompts, prefixes and parents of the ``rows`` of one kind."""
    n, turn, sessions = len(rows), timeline.turn[rows], kind.sessions
    # Sessions with history choose a prefix once, other requests each time.
    has_history = sessions is not None and sessions.history
    is_first = turn == 0 if has_history else np.ones(n, bool)
    unit = np.cumsum(is_first) - 1
    firsts = rows[is_first]
    client = None if timeline.client is None else timeline.client[timeline.start[firsts]]
    whole = draw_prefixes(
        kind.system_prompts, kind.documents, len(firsts), client, seed, kind.name
    ).taken(unit)
    on_top = whole.own_tokens + (0 if kind.prefix_is_part_of_input else whole.total_tokens)
    prompt = own + np.where(is_first, on_top, 0)
    parent, shared = np.full(n, NONE), np.zeros(n, np.int64)
    if sessions is not None and has_history:
        first_prompt = np.minimum(prompt[is_first], sessions.max_prompt_tokens)
        prefix = np.minimum(whole.total_tokens, first_prompt[unit] - 1)
        prompt, shared = grow_contexts(sessions, turn, prompt, output, prefix, seed, kind.name)
        parent = np.where(turn > 0, np.arange(n) - 1, NONE)
    elif sessions is not None:
        prompt = np.minimum(prompt, sessions.max_prompt_tokens)
    cut = whole.clipped(prompt - 1)
    if kind.continuations is not None:
        parent, shared = continue_earlier(
            kind.continuations,
            timeline.nominal_ns[rows] / NS_PER_S,
            prompt,
            output,
            cut.total_tokens,
            seed,
            kind.name,
        )
    contents.prompt[rows], contents.output[rows], contents.shared[rows] = prompt, output, shared
    contents.parent[rows] = np.append(rows, NONE)[parent]
    contents.prefixes.append((rows, cut, whole))


def _chains(
    spec: GeneratorSpec, timeline: Timeline, contents: _Contents, place: Int64
) -> PrefixChains | None:
    """Build the chains of the kept rows; if a parent is not kept, a row's history is new
    content."""
    if not any(kind.shares_prefixes for kind in spec.kinds):
        return None
    n, kept = len(timeline), timeline.kept
    num_levels = max(prefixes.content.shape[1] for _, prefixes, _ in contents.prefixes)
    content = np.full((n, num_levels), NONE)
    tokens, whole_tokens = np.zeros((n, num_levels), np.int64), np.zeros((n, num_levels), np.int64)
    for rows, cut, whole in contents.prefixes:
        levels = cut.content.shape[1]
        content[rows, :levels] = cut.content
        tokens[rows, :levels] = cut.tokens
        whole_tokens[rows, :levels] = whole.tokens
    covers_output = any(kind.remembers for kind in spec.kinds)
    answers = contents.output if covers_output else np.zeros(n, np.int64)
    lineage = Lineage(
        chain_tokens=(contents.prompt + answers)[kept],
        parent=place[contents.parent[kept]],
        shared_tokens=contents.shared[kept],
        kind=timeline.kind[kept],
        level_content=content[kept],
        level_tokens=tokens[kept],
        whole_level_tokens=whole_tokens[kept],
    )
    return build_chains(lineage, spec.block_tokens, covers_output=covers_output)
