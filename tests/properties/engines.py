"""Random request tables, and engines, costs and caches to serve them."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np

from sim.beams import BeamSearch
from sim.engine.config import EngineConfig
from sim.kv.layout import PLAIN, KVLayout, PromptPages, WindowPages
from sim.request_table import RequestTable, draw_lengths, request_table
from sim.throttle import PowerThrottle
from tests.properties.helpers import AffineCost, chains_of


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
        max_concurrency=draw(st.sampled_from([None, None, 3])),
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


COSTS = st.builds(
    AffineCost,
    base_s=st.sampled_from([1e-4, 5e-3]),
    launch_delay_ns=st.sampled_from([0, 300_000]),
    launch_ns=st.sampled_from([0, 400_000, 6_000_000]),
    tail_ns=st.sampled_from([0, 100_000]),
    host_ns=st.sampled_from([0, 50_000]),
    host_per_seq_ns=st.sampled_from([0, 7_000]),
    throttle=st.sampled_from([None, PowerThrottle(0.3, 0.02, 0.05, 0.6)]),
    compute_share=st.sampled_from([0.0, 0.4, 1.0]),
    launch_spread=st.sampled_from([0.0, 0.8]),
)


LAYOUTS = st.builds(
    KVLayout,
    grows=st.sampled_from([True, True, False]),
    windows=st.sampled_from([(), (WindowPages(10, 2),), (WindowPages(4, 1), WindowPages(33, 1))]),
    fixed_pages=st.integers(0, 2),
    prompts=st.sampled_from(
        [(), (), (PromptPages(20, 1),), (PromptPages(3, 1), PromptPages(70, 2))]
    ),
    checkpoint_pages=st.sampled_from([0, 0, 1, 3]),
).filter(lambda layout: layout.pages(1, 4) > 0)


ENGINES = st.builds(
    EngineConfig,
    max_num_batched_tokens=st.sampled_from([8, 40, 512]),
    max_num_seqs=st.sampled_from([1, 4, 8]),
    max_model_len=st.just(200),
    block_size=st.sampled_from([4, 8]),
    num_gpu_blocks=st.integers(20, 120),
    kv_layout=st.just(PLAIN) | LAYOUTS,
    clip_tokens=st.sampled_from(
        [(), (), (1,), (16,), (7, 64), (30, 31, 150), ((20,),), (16, (9, 40, 90))]
    ),
    enable_prefix_caching=st.booleans(),
    shared_prefix_attention=st.sampled_from(["none", "cascade", "tree"]),
    async_scheduling=st.booleans(),
    preemption_mode=st.sampled_from(["recompute", "swap"]),
    num_cpu_blocks=st.sampled_from([0, 10, 100]),
    swap_ns_per_block=st.sampled_from([0.0, 40_000.0]),
)
