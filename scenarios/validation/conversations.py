"""Conversations in a recording: what their prompts share, and which turn waits for which.

A request's ``group`` is system prompt / conversation / turn, e.g. ``s0/c3/t1``; every turn's prompt
is the whole conversation so far, with the real answers, and something new.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibrate.fits.engine_log import RequestRow
from sim.arrays import Int64
from sim.errors import TraceError
from sim.request_table import PrefixChains

_GROUP = re.compile(r"([^/]+)/([^/]+)/[^/\d]*(\d+)$")
_ID_SPAN = 1 << 32  # more blocks than any prompt has


class _Turn(NamedTuple):
    system: str
    conversation: str
    turn: int


def are_conversations(rows: Sequence[RequestRow]) -> bool:
    """Return whether the requests of a run belong to conversations."""
    return bool(rows) and bool(rows[0].group)


def system_tokens(rows: Sequence[RequestRow], block_size: int) -> int:
    """Return the tokens of the shared system prompts, in whole blocks.

    The length is not recorded. First turns share nothing else, and a hit covers all full blocks of
    the prompt, so it is the most that a first turn found in the cache; 0 if none found anything. (A
    last, partial block of a system prompt is never hit, so it does not matter.)
    """
    hits = [row.cached for row in rows if _turn(row).turn == 0]
    return max(hits, default=0) // block_size * block_size


def conversation_chains(rows: Sequence[RequestRow], block_size: int) -> PrefixChains:
    """Return the blocks of each prompt and answer: the system prompt's, then the conversation's.

    Raises `TraceError` for a ``group`` that cannot be read.
    """
    system_blocks = system_tokens(rows, block_size) // block_size
    numbers: dict[str, int] = {}
    ids: list[Int64] = []
    tokens = [row.prompt + row.out for row in rows]
    for row, covered in zip(rows, tokens, strict=True):
        system, conversation, _ = _turn(row)
        blocks = np.arange(-(-covered // block_size), dtype=np.int64)
        of_system = numbers.setdefault(f"system {system}", len(numbers)) * _ID_SPAN
        of_conversation = numbers.setdefault(f"turns {conversation}", len(numbers)) * _ID_SPAN
        ids.append(blocks + np.where(blocks < system_blocks, of_system, of_conversation))
    return PrefixChains(
        ids=np.concatenate(ids),
        offsets=np.cumsum([0, *map(len, ids)]),
        tokens=np.array(tokens, np.int64),
        block_tokens=block_size,
        covers_output=True,
    )


def turns_after(rows: Sequence[RequestRow]) -> tuple[Int64, Int64]:
    """Return ``after`` and ``think_ns`` of a request table (rows in order of arrival).

    The think time is the recorded arrival less the finish of the turn before it.
    """
    after = np.full(len(rows), -1, np.int64)
    think_ns = np.zeros(len(rows), np.int64)
    last: dict[str, int] = {}
    for index, row in enumerate(rows):
        conversation = _turn(row).conversation
        before = last.get(conversation)
        if before is not None:
            after[index] = before
            think_ns[index] = max(0, round((row.arrival - rows[before].finish) * 1e9))
        last[conversation] = index
    return after, think_ns


def _turn(row: RequestRow) -> _Turn:
    match = _GROUP.match(row.group)
    if match is None:
        raise TraceError(
            f"group is {row.group!r}, not system prompt / conversation / turn, e.g. s0/c3/t1"
        )
    return _Turn(match[1], match[2], int(match[3]))
