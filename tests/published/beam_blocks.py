"""Memory saved by sharing blocks, parallel sampling and beam search (arXiv 2309.06180, figure 15).

OPT-13B on Alpaca: blocks saved, relative to those that sequences would hold without sharing. The
saving depends on lengths, the size of a block and how beams descend from each other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scenarios.build.workload.table import build_table
from scenarios.files.load import parse_scenario
from sim.engine.config import EngineConfig
from tests.properties.engines import small_run
from tests.published.rows import Row, Section
from tests.published.vllm_batches import BLOCK_TOKENS, CV, LONGEST, lengths

MEANS = (19.0, 58.0)
BAR = 0.30
PUBLISHED = {
    "n": {2: 0.0609, 4: 0.0853, 6: 0.0979},
    "beam_width": {2: 0.3756, 4: 0.5313, 6: 0.5516},
}
"""Figure 15, by number of answers and by width of the beam."""
LABELS = {"n": "answers sampled", "beam_width": "beams"}


def saved(option: str, seqs: int, requests: int = 500) -> float:
    """Share of blocks saved, mean over decode steps, all requests after one another."""
    workload: dict[str, Any] = {
        "generator": {"input_tokens": lengths(MEANS[0]), "output_tokens": lengths(MEANS[1])},
        "rate_per_s": 1.0,
        "num_requests": requests,
        option: seqs,
    }
    scenario = parse_scenario({"model": "facebook/opt-13b", "workload": workload})
    table = replace(build_table(scenario), max_concurrency=1)
    engine = EngineConfig(
        block_size=BLOCK_TOKENS,
        max_model_len=2 * LONGEST,
        replica_blocks=seqs * 2 * LONGEST // BLOCK_TOKENS + 1,
        enable_prefix_caching=False,
        async_scheduling=False,
        fast_forward=False,
    )
    steps = small_run(table, engine=engine).steps[0].columns()
    decodes = steps["decode_seqs"] > 0
    held = (engine.replica_blocks - 1 - steps["free_blocks"])[decodes]
    context = steps["decode_context_tokens"][decodes] // seqs + 1
    apart = seqs * -(-context // BLOCK_TOKENS)
    return 1 - float(held.sum() / apart.sum())


def sections() -> list[Section]:
    """All of the figure."""
    rows = [
        Row(f"{seqs} {LABELS[option]}", saved(option, seqs), share, "", BAR)
        for option, shares in PUBLISHED.items()
        for seqs, share in shares.items()
    ]
    return [
        Section(
            "B11 share of KV blocks saved by sharing, OPT-13B on Alpaca (figure 15)",
            f"lognormal lengths, means {MEANS[0]:g} in and {MEANS[1]:g} out, CV {CV:g} (assumed), "
            "all answers to a request of one length; beams descend from each other uniformly "
            f"(assumed); blocks of {BLOCK_TOKENS}; mean over decode steps; no constant fitted",
            rows,
            (
                "not blind: a first version rounded the blocks of each request's beams up, and had "
                "32.8%, 57.8% and 66.1% for 2, 4 and 6 beams",
            ),
        )
    ]
