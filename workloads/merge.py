"""Merge several workloads into one table of request classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from sim.arrays import Int64
from sim.errors import ScenarioError
from sim.request_table import UNLIMITED, PrefixChains, RequestTable
from workloads.chains import chain_offsets, take_chains
from workloads.transform import earliest_arrival_ns


def merge(
    tables: Mapping[str, RequestTable], same_content: Mapping[str, str] = MappingProxyType({})
) -> RequestTable:
    """Merge tables in order of arrival; ``class_index`` says which table each request came from.

    Block ids and sessions of different tables are made distinct. Only tables to which
    ``same_content`` gives the same key keep equal block ids equal. Later turns of a session stand
    behind the turn they wait for. Raises ScenarioError for a table that limits concurrency.
    """
    parts = list(tables.values())
    if any(part.max_concurrency < UNLIMITED for part in parts):
        raise ScenarioError("max_concurrency holds for a whole workload, not for one class of it")
    sizes = [len(part) for part in parts]
    starts = chain_offsets(np.array(sizes, np.int64))
    key_ns = np.concatenate([earliest_arrival_ns(part) for part in parts])
    order = np.argsort(key_ns, kind="stable")

    def column(name: str) -> Int64:
        return np.concatenate([getattr(part, name) for part in parts])[order]

    keys = [f"as {same_content[n]}" if n in same_content else f"alone {n}" for n in tables]
    chains = _merged_chains(parts, keys)
    after, think_ns = _merged_links(parts, starts, order)
    return RequestTable(
        arrival_ns=column("arrival_ns"),
        prompt_tokens=column("prompt_tokens"),
        output_tokens=column("output_tokens"),
        priority=column("priority"),
        chains=None if chains is None else take_chains(chains, order),
        after=after,
        think_ns=think_ns,
        session=_merged_sessions(parts, order),
        class_index=np.repeat(np.arange(len(parts)), sizes)[order],
        class_names=tuple(tables),
        source=" + ".join(f"{name}: {part.source}" for name, part in tables.items()),
        skipped_rows=sum(part.skipped_rows for part in parts),
        notes=tuple(f"{name}: {note}" for name, part in tables.items() for note in part.notes),
    )


def split_blocks(chains: PrefixChains, block_tokens: int) -> PrefixChains:
    """Name the same prefixes by smaller blocks of ``block_tokens``, a divisor of the present
    size."""
    ratio = chains.block_tokens // block_tokens
    if ratio == 1:
        return chains
    lengths = np.minimum(np.diff(chains.offsets) * ratio, -(-chains.tokens // block_tokens))
    offsets = chain_offsets(lengths)
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    position = np.repeat(chains.offsets[:-1], lengths) + place // ratio
    return PrefixChains(
        ids=_dense(chains.ids)[position] * ratio + place % ratio,
        offsets=offsets,
        tokens=chains.tokens,
        block_tokens=block_tokens,
        covers_output=chains.covers_output,
    )


def _merged_chains(parts: Sequence[RequestTable], keys: Sequence[str]) -> PrefixChains | None:
    """Concatenate the chains of all parts; parts with equal ``keys`` share their ids."""
    given = [part.chains for part in parts if part.chains is not None]
    if not given:
        return None
    block_tokens = math.gcd(*(chains.block_tokens for chains in given))
    names = _names(parts, keys, block_tokens)
    ids, lengths, tokens = [], [], []
    for part, key in zip(parts, keys, strict=True):
        if part.chains is None:
            lengths.append(np.zeros(len(part), np.int64))
            tokens.append(np.zeros(len(part), np.int64))
            continue
        chains = split_blocks(part.chains, block_tokens)
        known, base = names[key]
        ids.append(np.searchsorted(known, chains.ids) + base)
        lengths.append(np.diff(chains.offsets))
        tokens.append(chains.tokens)
    return PrefixChains(
        ids=np.concatenate(ids),
        offsets=chain_offsets(np.concatenate(lengths)),
        tokens=np.concatenate(tokens),
        block_tokens=block_tokens,
        covers_output=any(chains.covers_output for chains in given),
    )


def _names(
    parts: Sequence[RequestTable], keys: Sequence[str], block_tokens: int
) -> dict[str, tuple[Int64, int]]:
    """Return, for each key, the sorted ids of its parts and where their new ids begin."""
    found: dict[str, list[Int64]] = {}
    for part, key in zip(parts, keys, strict=True):
        if part.chains is not None:
            found.setdefault(key, []).append(split_blocks(part.chains, block_tokens).ids)
    names, base = {}, 0
    for key, ids in found.items():
        known = np.unique(np.concatenate(ids))
        names[key] = (known, base)
        base += len(known)
    return names


def _merged_links(
    parts: Sequence[RequestTable], starts: Int64, order: Int64
) -> tuple[Int64 | None, Int64 | None]:
    if all(part.after is None for part in parts):
        return None, None
    new_place = np.empty(len(order), np.int64)
    new_place[order] = np.arange(len(order))
    after, think_ns = [], []
    for start, part in zip(starts.tolist(), parts, strict=False):
        nothing = np.full(len(part), -1)
        own = nothing if part.after is None else part.after
        after.append(np.where(own < 0, -1, new_place[np.maximum(own, 0) + start]))
        think_ns.append(np.zeros(len(part), np.int64) if part.think_ns is None else part.think_ns)
    return np.concatenate(after)[order], np.concatenate(think_ns)[order]


def _merged_sessions(parts: Sequence[RequestTable], order: Int64) -> Int64 | None:
    if all(part.session is None for part in parts):
        return None
    sessions, base = [], 0
    for part in parts:
        # A request outside any session becomes a session of its own.
        own = _dense(np.arange(len(part)) if part.session is None else part.session)
        sessions.append(own + base)
        base += int(own.max(initial=-1)) + 1
    return np.concatenate(sessions)[order]


def _dense(ids: Int64) -> Int64:
    """Rename the ids to 0, 1, 2, ... in ascending order."""
    return np.unique(ids, return_inverse=True)[1].reshape(-1)
