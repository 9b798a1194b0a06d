"""Mooncake rows that hold only what a turn adds to its session's prompt (NVIDIA Dynamo, AIPerf)."""

from __future__ import annotations

from functools import partial

from workloads.readers.format import Format
from workloads.readers.mooncake import read_mooncake

FORMAT = Format(
    name="mooncake-delta",
    description="the same, a row only what its turn adds (name the format: it looks alike)",
    read=partial(read_mooncake, deltas=True),
    options=("spread_ticks", "block_tokens"),
)
