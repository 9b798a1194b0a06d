"""Pages of pools that layers of several kinds share: how many a sequence holds, and their sizes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.hardware.gpus import load_gpu
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import shard
from costmodels.memory.device import DevicePlan
from costmodels.memory.paging import attention_block_tokens, kv_layout, page_bytes
from costmodels.models.catalog import load_model, model_names
from sim.engine.config import EngineConfig
from sim.engine.crossings import Crossings
from sim.engine.decode_group import DecodeGroup
from sim.errors import ScenarioError
from sim.kv.layout import PLAIN, KVLayout, WindowPages
from sim.kv.pool import KVCache
from sim.request import Request
from sim.shape import Clip, clipped
from tests.properties.engines import LAYOUTS, small_run
from tests.properties.tables import chains_of, table_of


@pytest.mark.parametrize(
    ("model", "ranks", "block_size", "layout"),
    [
        ("llama-3.1-8b", 1, 16, PLAIN),
        ("deepseek-v3", 8, 16, PLAIN),
        ("deepseek-v3.2", 8, 16, PLAIN),
        # As many groups as layers of the kind over layers that grow, rounded up.
        ("gpt-oss-120b", 1, 16, KVLayout(windows=(WindowPages(128, 1),))),
        ("gemma-3-27b", 1, 16, KVLayout(windows=(WindowPages(1024, 6),))),
        ("gemma-3-4b", 1, 16, KVLayout(windows=(WindowPages(1024, 6),))),
        ("Mistral-7B-v0.1", 1, 16, KVLayout(grows=False, windows=(WindowPages(4096, 1),))),
        # A block is as large as the state of a recurrent layer.
        ("qwen3-next-80b-a3b", 2, 544, KVLayout(fixed_pages=3)),
        ("kimi-linear-48b-a3b", 1, 1888, KVLayout(fixed_pages=3)),
        ("minimax-m1", 8, 1024, KVLayout(fixed_pages=7)),
    ],
)
def test_layouts_of_models(model: str, ranks: int, block_size: int, layout: KVLayout) -> None:
    rank = shard(load_model(model), ranks)
    assert attention_block_tokens(rank) == block_size
    assert kv_layout(rank, block_size) == layout


@pytest.mark.parametrize("name", model_names())
@pytest.mark.parametrize("context", [1, 100, 5000, 100_000])
def test_pages_hold_the_state(name: str, context: int) -> None:
    """Never fewer bytes than the state has, and not many more: a block, or a group's padding."""
    rank = shard(load_model(name), 1)
    block_size = attention_block_tokens(rank)
    layout, page = kv_layout(rank, block_size), page_bytes(rank, block_size)
    held = layout.pages(context, block_size) * page
    assert held >= rank.local.state_bytes(context)
    groups = sum(groups for _, groups in layout.windows)
    # Rounding: a page of each group, and the block a window begins in.
    most = rank.local.state_bytes(context) + (2 + 3 * groups) * page
    if layout.windows:  # ... and the padding of the last group of each window
        most += len(layout.windows) * page * -(-max(w for w, _ in layout.windows) // block_size)
    assert held <= most


@given(
    layout=st.just(PLAIN) | LAYOUTS,
    block_size=st.sampled_from([4, 8, 16]),
    tokens=st.integers(1, 2000),
)
def test_pages_of_a_sequence(layout: KVLayout, block_size: int, tokens: int) -> None:
    blocks = -(-tokens // block_size)
    expected = layout.fixed_pages + blocks * layout.grows
    for window_tokens, groups in layout.windows:
        expected += groups * min(blocks, -(-window_tokens // block_size) + 1)
    expected += blocks * sum(groups for _, groups in layout.prompts)
    assert layout.pages(tokens, block_size) == expected
    assert layout.pages(0, block_size) == 0
    longest = layout.most_tokens(expected, block_size)
    assert longest >= blocks * block_size
    assert layout.pages(longest, block_size) <= expected
    if layout.grows or layout.prompts:
        assert layout.pages(longest + 1, block_size) > expected


@given(
    name=st.sampled_from(model_names()),
    ranks=st.sampled_from([1, 2, 8]),
    block_size=st.sampled_from([16, 64]),
)
def test_bytes_of_a_pool_balance(name: str, ranks: int, block_size: int) -> None:
    try:
        plan = DevicePlan(
            load_model(name),
            load_gpu("b300"),
            max_num_batched_tokens=2048,
            max_num_seqs=128,
            layout=Layout(tensor_parallel_size=ranks),
            block_size=block_size,
        )
        blocks = plan.blocks
    except ScenarioError:
        return
    parts = plan.weight_bytes + plan.workspace_bytes + blocks.num_bytes
    assert parts + blocks.free_bytes == plan.gpu.hbm_bytes
    assert blocks.num_bytes == blocks.num_gpu_blocks * blocks.block_bytes
    assert blocks.block_size % block_size == 0
    assert blocks.num_gpu_blocks > blocks.layout.pages(1, blocks.block_size)


def test_a_window_is_all_a_sequence_holds() -> None:
    """Windows alone: long answers need no more, and a pool of two windows serves them two by two.

    8 tokens in blocks of 4 are 3 pages a sequence.
    """
    layout = KVLayout(grows=False, windows=(WindowPages(8, 1),))
    engine = EngineConfig(
        block_size=4, replica_blocks=1 + 6, kv_layout=layout, max_model_len=1 << 20
    )
    log = small_run(table_of((0, 100, 5000), (0, 50, 5000), (0, 10, 9)), engine=engine)
    assert list(log.requests.preemptions) == [0, 0, 0]
    (steps,) = log.steps
    assert int(steps.column("decode_seqs").max()) == 2
    assert int(steps.column("free_blocks").min()) == 0


def test_what_windows_hold_is_no_content_to_hit() -> None:
    layout = KVLayout(windows=(WindowPages(8, 2),), fixed_pages=1)
    kv = KVCache(31, 4, chains=chains_of([[1, 2], [1, 2]], [8, 8], 4), layout=layout)
    first = Request(0, 0, 8, 1, num_target_tokens=8)
    kv.pin(first, kv.lookup(first))
    assert kv.extend(first, 8)
    assert first.num_blocks == 2 + 2 * 2 + 1 == 30 - kv.free_blocks
    kv.register(first, 8)
    kv.release(first, 8, will_return=False)
    assert kv.free_blocks == 30
    again = Request(1, 0, 8, 1, num_target_tokens=8)
    hit = kv.lookup(again)
    assert (hit.blocks, hit.evictable) == (1, 1)
    kv.pin(again, hit)
    assert kv.extend(again, 8)
    assert again.num_blocks == 7 == 30 - kv.free_blocks
    none = KVLayout(grows=False, windows=(WindowPages(8, 2),))
    kv = KVCache(31, 4, chains=chains_of([[1, 2], [1, 2]], [8, 8], 4), layout=none)
    kv.register(first, 8)
    assert kv.lookup(again).blocks == 0


@settings(max_examples=150, deadline=None)
@given(
    layout=st.just(PLAIN) | LAYOUTS,
    clips=st.sampled_from([(), (1,), (6, 20), ((5,),), (6, (2, 30, 11))]),
    seed=st.integers(0, 10**6),
)
def test_a_group_knows_what_its_members_need(
    layout: KVLayout, clips: tuple[Clip, ...], seed: int
) -> None:
    """Joining, leaving, being held back and jumps: sums and pages are those of the members."""
    die, block_size = random.Random(seed), 4
    group = DecodeGroup(block_size, clips, layout)
    for index in range(60):
        what = die.random()
        if what < 0.3 or not group.members:
            prompt = die.randint(1, 40)
            request = Request(index, 0, prompt, die.randint(2, 50), num_computed_tokens=prompt)
            request.num_sampled_tokens = 1
            group.join(request)
        elif what < 0.4:
            group.remove(die.choice(list(group.members)))
        else:
            steps = 1
            if what < 0.7:
                for request in list(group.members):
                    if die.random() < 0.3:
                        group.hold_back(request)
            else:
                most = min(group.steps_to_leave(), group.steps_to_cross())
                steps = die.randint(1, most)
            group.advance(steps)
        members = [(group.computed_tokens(r), r.prompt_tokens) for r in group.members]
        assert group.clipped_sums() == [
            (
                sum(clipped(clip, c, prompt) for c, prompt in members),
                sum(
                    clipped(clip, c + 1, prompt) - clipped(clip, c, prompt) for c, prompt in members
                ),
            )
            for clip in clips
        ]
        ahead = range(1, min(group.steps_to_cross(), 30) + 1) if group.members else ()
        for steps in ahead:
            needed = sum(
                layout.pages(c + steps, block_size, prompt) - layout.pages(c, block_size, prompt)
                for c, prompt in members
            )
            assert group.blocks_due(steps) == needed


def test_crossings_are_counted_by_step() -> None:
    crossings = Crossings(10)
    requests = [Request(i, 0, 1, 9, num_computed_tokens=tokens) for i, tokens in enumerate((3, 9))]
    for request in requests:
        crossings.track(request, 0)
    crossings.track(Request(2, 0, 1, 9, num_computed_tokens=10), 0)  # is there already
    assert (crossings.below, crossings.next_step()) == (2, 1)
    assert crossings.pass_step(1) == 1
    crossings.forget(requests[1], 1)
    assert (crossings.below, crossings.next_step()) == (1, 7)
    crossings.forget(requests[0], 1)
    assert (crossings.below, crossings.next_step()) == (0, None)
