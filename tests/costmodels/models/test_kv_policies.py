"""Keys and values dropped after a prompt is computed (SnapKV, PyramidKV), from YAML to accounts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.hardware.gpus import load_gpu
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import shard
from costmodels.memory.device import DevicePlan
from costmodels.memory.paging import kv_layout, page_bytes
from costmodels.models.catalog import load_model
from costmodels.models.kv_policies import pyramid_kv, quest, snapkv
from costmodels.models.layers.bounded import pyramid_budgets
from costmodels.models.layers.gqa import Gqa
from costmodels.steps.compile import StepOptions, compile_step_cost
from scenarios.build.builder import build
from scenarios.build.workload.table import build_table
from scenarios.run.simulate import simulate
from scenarios.schema import Scenario
from sim.engine.config import EngineConfig
from sim.errors import ScenarioError
from sim.kv.layout import KVLayout, PromptPages
from sim.shape import chunk_shape, decode_shape
from tests.equivalence.runs import check_jumps
from tests.properties.engines import small_run
from tests.properties.scenarios import small
from tests.properties.tables import table_of

LLAMA = load_model("llama-3.1-8b")
SMALL: dict[str, Any] = {"max_num_batched_tokens": 8192, "max_num_seqs": 64}
SNAPKV = {"kind": "snapkv", "budget_tokens": 1024}


def scenario(policy: dict[str, Any] | None, **kv: Any) -> Scenario:
    generator = {"input_tokens": {"fixed": 6000}, "output_tokens": {"fixed": 200}}
    values = small(generator=generator, rate_per_s=3, num_requests=60)
    return Scenario(**values, kv={"policy": policy, **kv})


def test_pages_are_given_back_when_the_prompt_is_computed() -> None:
    """A prompt of 100 in blocks of 4 is 25 pages; a budget of 20 leaves 5, and 5 more a 20th."""
    layout = KVLayout(grows=False, prompts=(PromptPages(20, 1),))
    engine = EngineConfig(
        block_size=4, replica_blocks=41, kv_layout=layout, step_token_limit=64, running_seq_limit=8
    )
    (steps,) = small_run(table_of((0, 100, 9)), engine=engine).steps
    free, seqs = steps.column("free_blocks"), steps.column("decode_seqs")
    assert free[seqs == 0].tolist() == [40 - 16, 40 - 25]  # chunks of 64 and 36
    # 8 decode steps: tokens 21 to 28 of what is kept. The plan that opens a block has taken it.
    decoding = np.repeat(free[seqs == 1], steps.column("steps")[seqs == 1])
    assert decoding[0] == 40 - 6
    assert free.min() == 40 - 25


def test_budgets_by_layer_are_pages_by_layer() -> None:
    rank = shard(pyramid_kv(LLAMA, 256), 1)
    layout = kv_layout(rank, 16)
    assert page_bytes(rank, 16) == 16 * 4096
    assert sorted(layout.prompts, reverse=True) == [
        PromptPages(budget, 1) for budget in pyramid_budgets(256, 32)
    ]
    whole = layout.pages(5000, 16)
    assert whole == 32 * -(-5000 // 16)
    kept = layout.pages(5000, 16, 4990)
    assert 32 * 256 // 16 <= kept <= 32 * (256 // 16 + 2)
    plain = kv_layout(shard(snapkv(LLAMA, 256), 1), 16)
    assert plain.pages(5010, 16, 5000) == -(-266 // 16)


@given(
    budgets=st.lists(st.integers(1, 40), min_size=1, max_size=3, unique=True),
    block_size=st.sampled_from([4, 16]),
    prompt=st.integers(1, 100),
    generated=st.integers(0, 60),
)
def test_what_is_kept_is_the_budget_and_all_that_is_generated(
    budgets: list[int], block_size: int, prompt: int, generated: int
) -> None:
    layout = KVLayout(grows=False, prompts=tuple(PromptPages(b, 1) for b in sorted(budgets)))
    pages = layout.pages(prompt + generated, block_size, prompt)
    assert pages == sum(-(-(min(prompt, b) + generated) // block_size) for b in budgets)
    assert pages <= layout.pages(prompt + generated, block_size)


@pytest.mark.parametrize("budget", [1024, 100_000])
def test_a_decode_reads_what_is_kept(budget: int) -> None:
    """As long as a decode of full attention over min(prompt, budget) + generated."""
    gpu = load_gpu("h200")
    model = snapkv(LLAMA, budget)
    ours, plain = (compile_step_cost(one, gpu, StepOptions(**SMALL)) for one in (model, LLAMA))
    shape = decode_shape(16, 16_100, model.clips, prompt=16_000)
    kept = decode_shape(16, min(16_000, budget) + 100)
    assert ours.price(shape).gpu_ns == plain.price(kept).gpu_ns
    steps = 300
    run, same = ours.price_decodes(shape, steps), plain.price_decodes(kept, steps)
    assert run.gpu_cumulative_ns == same.gpu_cumulative_ns


def test_votes_are_priced_with_the_prompt() -> None:
    """16 pairs' worth of compute a token: seen in prefill, and small."""
    gpu, model = load_gpu("h200"), snapkv(LLAMA, 1024)
    ours, plain = (compile_step_cost(one, gpu, StepOptions(**SMALL)) for one in (model, LLAMA))
    for start, tokens in ((0, 8192), (24_000, 8192)):
        voted = ours.price(chunk_shape(start, tokens, model.clips)).gpu_ns
        whole = plain.price(chunk_shape(start, tokens)).gpu_ns
        assert whole < voted < 1.05 * whole


def test_pyramid_reads_as_much_as_snapkv() -> None:
    gpu = load_gpu("h200")
    costs = {}
    for model in (snapkv(LLAMA, 512), pyramid_kv(LLAMA, 512)):
        cost = compile_step_cost(model, gpu, StepOptions(**SMALL))
        costs[model] = cost.price(decode_shape(32, 9000, model.clips, prompt=8900)).gpu_ns
    one, other = costs.values()
    assert one == pytest.approx(other, rel=1e-3)


@pytest.mark.parametrize("kind", ["snapkv", "pyramidkv"])
def test_jumping_equals_stepping(kind: str) -> None:
    """With real prices; random layouts and schedulers are in `tests/equivalence`."""
    chosen = scenario({"kind": kind, "budget_tokens": 512}, enable_prefix_caching=True)
    built = build(chosen)
    assert any("prefix caching is off" in note for note in built.notes)
    assert any("does to answers is not modelled" in note for note in built.notes)
    check_jumps(build_table(chosen), built.pool)


def test_a_pool_that_is_too_small_for_all_prompts_holds_all_that_is_kept() -> None:
    """Same prompts, same pool: full caches wait for each other, capped ones need not."""
    whole, capped = (simulate(scenario(policy, num_gpu_blocks=700)) for policy in (None, SNAPKV))
    waited, wait = (result.figure("queue", "p99") or 0.0 for result in (whole, capped))
    assert 0 < wait < 0.5 * waited


@settings(deadline=None, max_examples=20)
@given(budget=st.integers(16, 4096), page=st.sampled_from([16, 32]))
def test_quest_reads_whole_pages(budget: int, page: int) -> None:
    if budget % page:
        with pytest.raises(ScenarioError, match="is not whole pages"):
            quest(LLAMA, budget, page)
        return
    model = quest(LLAMA, budget, page)
    assert model.clip_tokens == (budget,)
    more = model.growing_state_bytes_per_token / LLAMA.growing_state_bytes_per_token
    assert more == pytest.approx(1 + 1 / page)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"kind": "h2o", "budget_tokens": 10, "sink_tokens": 4}, "no option of h2o"),
        ({"kind": "snapkv", "budget_tokens": 10, "page_tokens": 4}, "no option of snapkv"),
        ({"kind": "streaming_llm", "budget_tokens": 4}, "must be more than its 4 sink_tokens"),
        ({"kind": "snap", "budget_tokens": 4}, "streaming_llm"),
    ],
)
def test_options_of_another_kind_are_refused(policy: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scenario(policy)


def test_latent_attention_has_nothing_to_drop() -> None:
    assert not any(isinstance(mixer, Gqa) for mixer, _ in load_model("deepseek-v3").mixers)
    with pytest.raises(ScenarioError, match="no full grouped-query attention"):
        snapkv(load_model("deepseek-v3"), 512)


def test_hybrids_keep_their_windows_and_states() -> None:
    """Sliding layers stay as they are; a recurrent state still fits a page."""
    blocks = DevicePlan(snapkv(load_model("gpt-oss-20b"), 512), load_gpu("h200"), **SMALL).blocks
    assert (len(blocks.layout.windows), blocks.layout.prompts) == (1, (PromptPages(512, 1),))
    hybrid = DevicePlan(
        snapkv(load_model("qwen3-next-80b-a3b"), 2048),
        load_gpu("h200"),
        layout=Layout(tensor_parallel_size=2),
        **SMALL,
    ).blocks
    assert (hybrid.block_size, hybrid.layout.fixed_pages) == (544, 3)
