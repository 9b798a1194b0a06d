"""Tables that are answered by beam search, and an engine that is too small for them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sim.beams import BeamSearch
from sim.engine.config import EngineConfig
from sim.request_table import RequestTable

HARD = EngineConfig(
    max_num_batched_tokens=32,
    max_num_seqs=8,
    max_model_len=220,
    block_size=4,
    num_gpu_blocks=80,
)


def searched(
    table: RequestTable, width: int | list[int], tail_tokens: float | None = None
) -> RequestTable:
    """The table, answered by beam search."""
    widths = np.broadcast_to(np.array(width, np.int64), len(table))
    return replace(table, beams=BeamSearch(widths=widths, tail_tokens=tail_tokens))
