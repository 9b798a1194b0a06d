"""Request tables: from rows, of sessions, for beam search, and random ones."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import numpy as np

from sim.beams import BeamSearch
from sim.request_table import UNLIMITED, PrefixChains, RequestTable, draw_lengths, request_table


def table_of(*rows: tuple[float, int, int], max_concurrency: int = UNLIMITED) -> RequestTable:
    """A table from (arrival_s, prompt_tokens, output_tokens) rows."""
    arrival_s, prompt_tokens, output_tokens = np.array(rows, float).reshape(-1, 3).T
    return request_table(
        arrival_s,
        prompt_tokens.astype(np.int64),
        output_tokens.astype(np.int64),
        max_concurrency=max_concurrency,
    )


def chains_of(
    chains: list[list[int]], tokens: list[int], block_tokens: int, *, covers_output: bool = False
) -> PrefixChains:
    """Prefix chains from lists of ids."""
    offsets = np.cumsum([0, *map(len, chains)])
    ids = np.array([i for chain in chains for i in chain], np.int64)
    return PrefixChains(
        ids=ids,
        offsets=offsets,
        tokens=np.array(tokens, np.int64),
        block_tokens=block_tokens,
        covers_output=covers_output,
    )


def chain_lists(table: RequestTable) -> list[list[int]]:
    """The block ids of each request's chain."""
    assert table.chains is not None
    return [table.chains.ids[a:b].tolist() for a, b in pairwise(table.chains.offsets.tolist())]


@st.composite
def tables(draw: st.DrawFn) -> RequestTable:
    """Bursts and gaps, one-token prompts and answers, prefix chains, closed and open loops."""
    n = draw(st.integers(1, 24))
    gaps_ms = draw(st.lists(st.sampled_from([0, 0, 1, 3, 20, 200]), min_size=n, max_size=n))
    prompts = draw(st.lists(st.integers(1, 150), min_size=n, max_size=n))
    outputs = draw(st.lists(st.integers(0, 60), min_size=n, max_size=n))
    priority = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    chains = None
    kind = draw(st.sampled_from(["none", "prompt", "output"]))
    if kind != "none":
        block_tokens = draw(st.sampled_from([4, 8, 16]))
        family = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
        covered = [
            p + (o if kind == "output" else 0) for p, o in zip(prompts, outputs, strict=True)
        ]
        ids = [
            [f * 1000 + j for j in range(-(-c // block_tokens))]
            for f, c in zip(family, covered, strict=True)
        ]
        chains = chains_of(ids, covered, block_tokens, covers_output=kind == "output")
    table = request_table(
        np.cumsum(gaps_ms) * 1e-3,
        np.array(prompts),
        np.array(outputs),
        priority=np.array(priority),
        chains=chains,
        max_concurrency=draw(st.sampled_from([UNLIMITED, UNLIMITED, 3])),
    )
    tenants = draw(st.none() | st.lists(st.integers(0, 2), min_size=n, max_size=n))
    if tenants is not None:
        names = ("a", "b", "c")
        table = replace(table, class_index=np.array(tenants), class_names=names)
    widths = draw(st.none() | st.lists(st.sampled_from([1, 1, 2, 4]), min_size=n, max_size=n))
    if widths is not None and draw(st.booleans()):
        tail_tokens = draw(st.sampled_from([None, 1.0, 5.5]))
        beams = BeamSearch(
            widths=np.where(table.output_tokens > 0, np.array(widths), 1), tail_tokens=tail_tokens
        )
        return replace(table, beams=beams)
    answers = draw(st.sampled_from([1, 1, 1, 2, 3]))
    if answers > 1:
        lengths = draw_lengths(table.output_tokens, answers, draw(st.sampled_from([0.2, 1.0])), 0)
        table = replace(table, samples=lengths)
    return table


def sessions(
    *rows: tuple[float, int, int, int, int], chains: Any = None, priority: Any = None
) -> RequestTable:
    """A table from (arrival_s, prompt_tokens, output_tokens, after, think_ns) rows."""
    arrival_s, prompt, output, after, think_ns = np.array(rows, float).T
    return request_table(
        arrival_s,
        prompt.astype(np.int64),
        output.astype(np.int64),
        after=after.astype(np.int64),
        think_ns=think_ns.astype(np.int64),
        chains=chains,
        priority=priority,
    )


@st.composite
def session_tables(draw: st.DrawFn) -> RequestTable:
    """Trees of turns: several may wait for one, earliest times bind or not, some are too long."""
    n = draw(st.integers(2, 20))
    after = [-1, *(draw(st.integers(-1, i - 1)) for i in range(1, n))]
    gaps_ms = draw(st.lists(st.sampled_from([0, 0, 2, 30]), min_size=n, max_size=n))
    arrival_s = np.cumsum(gaps_ms) * 1e-3
    arrival_s[np.array(after) >= 0] *= draw(st.sampled_from([0.0, 1.0]))
    prompts = draw(st.lists(st.sampled_from([1, 7, 40, 150, 500]), min_size=n, max_size=n))
    outputs = draw(st.lists(st.integers(0, 40), min_size=n, max_size=n))
    think_ns = draw(st.lists(st.sampled_from([0, 1, 3_000_000, 10**8]), min_size=n, max_size=n))
    chains = None
    if draw(st.booleans()):
        covered = [p + o for p, o in zip(prompts, outputs, strict=True)]
        ids = [[1000 * (i % 2) + j for j in range(-(-c // 8))] for i, c in enumerate(covered)]
        chains = chains_of(ids, covered, 8, covers_output=True)
    return sessions(
        *zip(arrival_s, prompts, outputs, after, think_ns, strict=True),
        chains=chains,
        priority=np.array(draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))),
    )


def searched(
    table: RequestTable, width: int | list[int], tail_tokens: float | None = None
) -> RequestTable:
    """The table, answered by beam search."""
    widths = np.broadcast_to(np.array(width, np.int64), len(table))
    return replace(table, beams=BeamSearch(widths=widths, tail_tokens=tail_tokens))
