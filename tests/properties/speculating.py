"""Engines that speculate: configurations, policies, and runs with all features at once."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st

from policies.acceptance.chain import Chain
from policies.acceptance.replay import Replay
from policies.acceptance.tree import Tree
from sim.engine.config import Speculation
from sim.protocols import Acceptance
from tests.properties.conservation import MAKERS
from tests.properties.engines import ENGINES

PATHS = [(0,), (1,), (0, 0), (2,), (0, 1), (0, 0, 0)]


ACCEPTANCES: dict[str, Acceptance] = {
    "one rate": Chain([[0.7]]),
    "none": Chain([[0.0]]),
    "all": Chain([[1.0]]),
    "by class and place": Chain([[0.9, 0.5], [0.3], [0.8, 0.7, 0.6]]),
    "tree": Tree(PATHS, [[[0.5, 0.2, 0.1]]]),
    "replayed": Replay([0, 3, 1, 5, 2], {1: [2, 0]}),
}


SPECULATIONS = st.builds(
    Speculation,
    acceptance=st.sampled_from(list(ACCEPTANCES.values())),
    drafts_by_seqs=st.sampled_from(
        [((1, 3),), ((1, 5), (2, 2), (4, 0)), ((1, 0), (3, 4)), ((1, 1), (2, 5))]
    ),
    lookahead=st.booleans(),
)


PLAIN_LAYOUTS = ENGINES.filter(
    lambda engine: not engine.kv_layout.fixed_pages and not engine.aligns_chunks
)


SPECULATING = st.builds(
    lambda engine, speculation: replace(
        engine, shared_prefix_attention="none", speculation=speculation
    ),
    PLAIN_LAYOUTS,
    SPECULATIONS,
)


POLICIES = [name for name in MAKERS if name != "vtc"]
