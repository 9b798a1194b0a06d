"""Tables of sessions, whose turns are sent when the turns before them have left."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np

from sim.request_table import RequestTable, request_table
from tests.properties.helpers import chains_of


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
