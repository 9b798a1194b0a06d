"""Prefix hits of hybrid models: checkpoints of recurrent states, and blocks of windows."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.hardware.gpus import load_gpu
from costmodels.layouts.layout import Layout
from costmodels.memory.device import DevicePlan
from costmodels.memory.paging import check_mamba_cache_mode
from costmodels.models.catalog import load_model
from costmodels.models.layers.gqa import Gqa
from costmodels.models.layers.mamba2 import Mamba2
from costmodels.models.spec import LayerGroup, quantized
from scenarios.build.builder import build
from scenarios.run.simulate import simulate
from scenarios.schema import Scenario
from sim.engine.config import EngineConfig
from sim.engine.step import Plan
from sim.engine.view import EngineView
from sim.errors import ScenarioError
from sim.kv.cached_content import CacheNodes
from sim.kv.eviction import LeastRecent, evict
from sim.kv.hybrid import Hits, States, Windows
from sim.kv.layout import PLAIN, KVLayout, WindowPages
from sim.kv.pool import KVCache
from sim.request import Request
from sim.request_table import PrefixChains, RequestTable, request_table
from tests.properties.engines import small_run
from tests.properties.scenarios import small
from tests.properties.tables import chains_of

ALIGN = KVLayout(fixed_pages=1, checkpoint_pages=1)


def table(rows: list[tuple[float, int, int]], chains: PrefixChains) -> RequestTable:
    arrival_s, prompts, outputs = (list(column) for column in zip(*rows, strict=True))
    return request_table(
        *(np.array(column) for column in (arrival_s, prompts, outputs)), chains=chains
    )


def engine(**options: Any) -> EngineConfig:
    values: dict[str, Any] = {
        "block_size": 4,
        "replica_blocks": 200,
        "kv_layout": ALIGN,
        "step_token_limit": 64,
        "running_seq_limit": 8,
    }
    return EngineConfig(**values | options)


def cached(rows: list[tuple[float, int, int]], ids: list[list[int]], **options: Any) -> list[int]:
    """Tokens that each of a few requests found, prompts of ids of 4 tokens each."""
    chains = chains_of(ids, [len(chain) * 4 for chain in ids], 4)
    log = small_run(table(rows, chains), engine=engine(**options))
    return list(log.requests.cached_tokens)


def chunks(rows: list[tuple[float, int, int]], **options: Any) -> list[int]:
    """New prompt tokens of each step with any."""
    (steps,) = small_run(
        table(rows, chains_of([[]] * len(rows), [0] * len(rows), 4)), engine=engine(**options)
    ).steps
    return [int(tokens) for tokens in steps.column("prefill_tokens") if tokens]


def test_prompts_are_cut_at_the_last_edge() -> None:
    """14 tokens in blocks of 4: to the edge at 12, then the rest, as vLLM's align mode does."""
    assert chunks([(0, 14, 2)]) == [12, 2]
    assert chunks([(0, 14, 2)], kv_layout=KVLayout(fixed_pages=1)) == [14]
    assert chunks([(0, 14, 2)], enable_prefix_caching=False) == [14]
    assert chunks([(0, 16, 2)]) == [16]
    assert chunks([(0, 3, 2)]) == [3]
    # A budget of 10 tokens holds two blocks, however many tokens are left over.
    assert chunks([(0, 23, 2)], step_token_limit=10) == [8, 8, 4, 3]


def test_an_equal_prompt_hits_the_last_checkpoint() -> None:
    rows = [(0.0, 14, 1), (1.0, 14, 1)]
    assert cached(rows, [[1, 2, 3], [1, 2, 3]]) == [0, 12]
    assert cached(rows, [[1, 2, 3], [1, 2, 3]], kv_layout=KVLayout(fixed_pages=1)) == [0, 12]


def test_a_shared_prefix_is_hit_from_the_third_request_on() -> None:
    """The second finds its blocks cached but no state; its first chunk ends there and keeps one."""
    ids = [[1, 2, 3, 4], [1, 2, 5, 6], [1, 2, 7, 8]]
    rows = [(float(i), 16, 1) for i in range(3)]
    assert cached(rows, ids) == [0, 0, 8]
    # With nothing recurrent the second hits at once.
    assert cached(rows, ids, kv_layout=KVLayout(fixed_pages=1)) == [0, 8, 8]


def test_a_state_is_not_read_in_the_step_that_computes_it() -> None:
    """Two equal prompts at one instant: the second waits for the step after the first's."""
    chains = chains_of([[1, 2, 3]] * 2, [12, 12], 4)
    log = small_run(table([(0, 13, 4), (0, 13, 4)], chains), engine=engine())
    assert list(log.requests.cached_tokens) == [0, 12]
    (steps,) = log.steps
    assert [int(n) for n in steps.column("prefill_tokens") if n] == [12, 1 + 1]


def test_decodes_leave_checkpoints_for_the_next_turn() -> None:
    """10 + 12 tokens: the last block filled ends at 20, and the next turn begins there."""
    chains = chains_of([[1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6]], [22, 24], 4, covers_output=True)
    log = small_run(table([(0, 10, 12), (1, 24, 1)], chains), engine=engine())
    assert list(log.requests.cached_tokens) == [0, 20]


def test_checkpoints_cost_pages_and_are_evicted_in_turn() -> None:
    layout = KVLayout(fixed_pages=2, checkpoint_pages=2)
    chains = chains_of([[1, 2], [1, 2], [3, 4, 5, 6]], [8, 8, 16], 4)
    kv = KVCache(12, 4, chains=chains, layout=layout)
    request = Request(0, 0, 8, 1, num_target_tokens=8)
    kv.pin(request, kv.lookup(request))
    assert kv.extend(request, 8)
    kv.register(request, 8)
    kv.checkpoint(request, 6)  # inside a block: nothing to keep
    assert kv.cached_free_blocks == 0
    kv.checkpoint(request, 4)
    kv.checkpoint(request, 8)
    assert (kv.free_blocks, kv.cached_free_blocks) == (11 - 4, 4)
    request.num_computed_tokens = 8
    kv.release(request, 8, will_return=False)
    assert (kv.free_blocks, kv.empty_blocks) == (11, 5)
    again = Request(1, 0, 9, 1, num_target_tokens=9)
    assert kv.lookup(again).is_fresh
    kv.new_step()
    hit = kv.lookup(again)
    assert (hit.blocks, hit.common, hit.evictable, hit.is_fresh) == (2, 2, 2, False)
    # The state at 4 is the oldest, then the blocks, the last one first, then the state at 8.
    kv.take(6)
    assert kv.empty_blocks == 1
    assert kv.lookup(again).blocks == 2
    kv.take(2)
    assert (kv.lookup(again).blocks, kv.lookup(again).common) == (0, 1)


def test_align_needs_room_for_a_block() -> None:
    with pytest.raises(ScenarioError, match="whole blocks of 128 tokens"):
        engine(block_size=128)
    with pytest.raises(ScenarioError, match="long_prefill_token_threshold"):
        engine(block_size=32, long_prefill_token_threshold=16)
    assert engine(block_size=128, enable_prefix_caching=False).block_size == 128


def test_a_policy_may_cut_anywhere() -> None:
    """Chunks of 5 end inside blocks and leave no state there; the run still ends."""

    def fives(view: EngineView) -> Plan:
        batch = view.new_batch()
        for request in list(view.running):
            batch.add(request, 5)
        for request in list(view.waiting):
            if not batch.admit(request, 5):
                break
        return batch.plan()

    chains = chains_of([[1, 2, 3, 4]] * 2, [16, 16], 4)
    log = small_run(
        table([(0, 17, 3), (1, 17, 3)], chains), engine=engine(), scheduler=lambda: fives
    )
    assert list(log.requests.cached_tokens) == [0, 16]  # 5, 8, 13, 16, 17


def test_a_window_needs_its_last_blocks() -> None:
    """A window of 8 tokens in blocks of 4 needs two blocks; what is evicted first is the oldest."""
    layout = KVLayout(windows=(WindowPages(8, 1),))
    chains = chains_of([[1, 2, 3, 4, 5]] * 2, [20, 20], 4)
    kv = KVCache(19, 4, chains=chains, layout=layout)
    first = Request(0, 0, 20, 1, num_target_tokens=20)
    kv.pin(first, kv.lookup(first))
    for tokens in (12, 20):
        assert kv.extend(first, tokens)
        kv.register(first, tokens)
    assert first.num_blocks == 5 + 3
    assert (kv.free_blocks, kv.cached_free_blocks) == (10, 5)
    first.num_computed_tokens = 20
    kv.release(first, 20, will_return=False)
    again = Request(1, 0, 21, 1, num_target_tokens=21)
    assert kv.lookup(again).blocks == 5
    kv.take(kv.empty_blocks + 1)  # the third of the three oldest goes
    assert kv.lookup(again).blocks == 5  # the last two are there: as young as the release
    kv.take(2 + 1)  # the other two old ones, and the last block of full attention
    found = kv.lookup(again)
    assert (found.common, found.blocks) == (4, 0)


class Plainly:
    """Windows of cached blocks as sets: what `Windows` must say."""

    def __init__(self, needed: int) -> None:
        self.needed = needed
        self.blocks: set[tuple[int, int]] = set()

    def longest(self, hits: Hits, blocks: int) -> int:
        flat = [(node, at) for node, depth in hits for at in range(depth)]
        for most in range(min(blocks, len(flat)), 0, -1):
            if all(one in self.blocks for one in flat[max(0, most - self.needed) : most]):
                return most
        return 0


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 10**6), needed=st.integers(1, 5), pages=st.integers(1, 3))
def test_windows_are_their_blocks(seed: int, needed: int, pages: int) -> None:
    die, nodes = random.Random(seed), CacheNodes(LeastRecent())
    window, plain = Windows(nodes, needed, pages), Plainly(needed)
    for _ in range(30):
        node, start = die.randint(0, 2), die.randint(0, 7)
        stop = die.randint(start + 1, 8)
        what = die.random()
        span = {(node, at) for at in range(start, stop)}
        if what < 0.6:
            assert window.cut(node, start, stop) == len(span & plain.blocks)
            window.add(node, start, stop)
            plain.blocks |= span
        elif what < 0.8:
            assert window.cut(node, start, stop) == len(span & plain.blocks)
            plain.blocks -= span
        elif plain.blocks:
            before = nodes.order.pages()
            gone = evict(nodes.order, min(die.randint(1, 4), before))
            assert nodes.order.pages() == before - gone
            plain.blocks = {one for one in plain.blocks if covered(window, one)}
        assert nodes.order.pages() == pages * len(plain.blocks)
        hits = [(n, die.randint(1, 8)) for n in range(3)]
        blocks = die.randint(0, 24)
        assert window.longest(hits, blocks) == plain.longest(hits, blocks)


def covered(window: Windows, one: tuple[int, int]) -> bool:
    return any(run.start <= one[1] < run.stop for run in window.runs(one[0]))


def test_states_are_found_from_the_right() -> None:
    nodes = CacheNodes(LeastRecent())
    states = States(nodes, 3)
    for place in ((1, 2), (1, 4), (2, 1)):
        states.add(*place)
    hits = [(1, 4), (2, 3)]
    assert [states.longest(hits, blocks) for blocks in range(8)] == [0, 0, 2, 2, 4, 5, 5, 5]
    assert states.is_fresh([(1, 4), (2, 1)])
    states.new_step()
    assert not states.is_fresh([(1, 4), (2, 1)])
    assert states.touch(1, 2)
    assert not states.touch(1, 3)
    evict(nodes.order, 1)  # whole states: the oldest is now the one at (1, 4)
    assert nodes.order.pages() == 6
    assert states.longest(hits, 4) == 2


def test_blocks_of_kimi_k3() -> None:
    """B4: with TP8 and an fp8 cache the smallest multiple of 128 tokens that holds a state: 1536.

    Its 69 KDA layers fill three pages of 24 MLA layers, of a sequence and of each checkpoint.
    """
    model = quantized(load_model("kimi-k3"), kv_cache="fp8")
    limits: dict[str, Any] = {"max_num_batched_tokens": 8192, "max_num_seqs": 64}
    gpu = load_gpu("gb300")
    layout = Layout(tensor_parallel_size=8)
    aligned = DevicePlan(model, gpu, layout=layout, mamba_cache_mode="align", **limits).blocks
    assert aligned.block_size == 1536
    assert (aligned.layout.fixed_pages, aligned.layout.checkpoint_pages) == (3, 3)
    assert DevicePlan(model, gpu, layout=layout, **limits).blocks.layout.checkpoint_pages == 0


def test_all_is_for_mamba2_alone() -> None:
    """A page then holds a state beside each block, so that a sequence needs none of its own."""
    mamba = Mamba2(heads=64, head_dim=64, state_size=128, groups=8)
    layers = (
        LayerGroup(count=4, mixer=Gqa(heads=32, kv_heads=8, head_dim=128)),
        LayerGroup(count=24, mixer=mamba),
    )
    model = replace(load_model("llama-3.1-8b"), layers=layers)
    limits: dict[str, Any] = {"max_num_batched_tokens": 8192, "max_num_seqs": 64}
    plain, kept = (
        DevicePlan(model, load_gpu("h200"), mamba_cache_mode=mode, **limits).blocks
        for mode in ("align", "all")
    )
    assert (plain.layout.fixed_pages, plain.layout.checkpoint_pages) == (6, 6)
    assert kept.layout == PLAIN
    assert (kept.block_size, kept.block_bytes) == (plain.block_size, 7 * plain.block_bytes)
    for name in ("kimi-k3", "qwen3-next-80b-a3b"):
        check_mamba_cache_mode(load_model(name), "align")
        with pytest.raises(ScenarioError, match="align would do"):
            check_mamba_cache_mode(load_model(name), "all")


def scenario(mode: str, **kv: Any) -> Scenario:
    """Conversations with Kimi Linear: turns share all that went before."""
    generator = {
        "input_tokens": {"fixed": 6000},
        "output_tokens": {"fixed": 300},
        "system_prompts": {"count": 2, "tokens": 4096},
    }
    values = small(generator=generator, rate_per_s=2, num_requests=30)
    values["model"] = "moonshotai/Kimi-Linear-48B-A3B-Instruct"
    values["engine"] = {"max_num_seqs": 256}  # latent attention keeps a block of each
    return Scenario(**values, kv={"mamba_cache_mode": mode, "cache_dtype": "fp8", **kv})


def test_hits_of_a_hybrid_model() -> None:
    """Half of each prompt is shared: from the second request of each prompt on it is found."""
    notes = build(scenario("none")).notes
    assert any("kv.mamba_cache_mode align keeps" in note for note in notes)
    none, align = (simulate(scenario(mode)) for mode in ("none", "align"))
    assert not none.figure("cache_hit_tokens", "value")
    # A block holds 3,776 tokens: of the 4,096 shared ones 63% of a prompt can be hit. The second
    # request of each system prompt finds its blocks but no state, and leaves one.
    assert 0.3 < (align.figure("cache_hit_fraction", "value") or 0.0) < 3776 / 6000
