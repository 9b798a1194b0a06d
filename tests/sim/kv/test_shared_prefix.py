"""Prefixes that several sequences share and that are read once: what is shared, and its cost."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.hardware.gpus import load_gpu
from costmodels.layouts.layout import Layout
from costmodels.models.catalog import load_model
from costmodels.steps.compile import StepOptions, compile_step_cost
from costmodels.steps.cost import StepCost
from costmodels.steps.prices import step_seconds
from scenarios.run.simulate import simulate
from scenarios.schema import Scenario
from sim.engine.config import EngineConfig
from sim.errors import ScenarioError
from sim.kv.pool import KVCache
from sim.kv.shared_prefix import PrefixTree, common_prefix
from sim.request import Request
from sim.shape import SharedSums, StepShape, causal_pairs
from tests.properties.conservation import held_blocks, shared_one_by_one
from tests.properties.priced_steps import columns_of
from tests.properties.tables import chains_of
from tests.published import hydragen

LIMITS: dict[str, Any] = {"max_num_batched_tokens": 2048, "max_num_seqs": 512}
CASES = [
    ("llama-3.1-8b", "h200", "tree"),
    ("llama-3.1-8b", "h200", "cascade"),
    ("llama-2-7b", "a100", "cascade"),
    ("deepseek-v3", "h200", "tree"),
]


@cache
def compiled(model: str, gpu: str, kernel: str) -> StepCost:
    ranks = 8 if model == "deepseek-v3" else 1
    return compile_step_cost(
        load_model(model),
        load_gpu(gpu),
        StepOptions(
            layout=Layout(tensor_parallel_size=ranks),
            shared_prefix_attention=kernel,
            **LIMITS,
        ),
    )


def request(index: int, *pinned: tuple[int, int]) -> Request:
    return Request(index, 0, 10_000, 10, pinned=list(pinned))


@st.composite
def members(draw: st.DrawFn) -> list[Request]:
    """Requests along the branches of a tree of nodes of three blocks.

    The last node may be cut, a private rest may follow it, and answers share all of that.
    """
    requests: list[Request] = []
    for index in range(draw(st.integers(1, 9))):
        branch = draw(st.lists(st.integers(0, 1), max_size=5))
        # A node's id is the path to it, so equal ids mean equal prefixes.
        path = [(int("1" + "".join(map(str, branch[:i]))), 3) for i in range(len(branch) + 1)]
        path[-1] = (path[-1][0], draw(st.sampled_from([1, 2, 3, 3])))
        private = draw(st.sampled_from([0, 0, 1, 2]))
        if private:
            path.append((-1 - index, private))
        if requests and draw(st.integers(0, 3)) == 0:
            path = requests[-1].pinned
        requests.append(request(index, *path))
    return requests


@settings(deadline=None, max_examples=40)
@given(requests=members(), data=st.data())
def test_the_tree_counts_what_its_members_share(requests: list[Request], data: Any) -> None:
    tree, inside = PrefixTree(4), list[Request]()

    def check() -> None:
        found = tree.sums()
        assert found == shared_one_by_one([held_blocks(r) for r in inside], 4)
        left_out = data.draw(st.sets(st.sampled_from(inside))) if inside else set()
        rest = [held_blocks(r) for r in inside if r not in left_out]
        assert tree.sums(without=left_out) == shared_one_by_one(rest, 4)
        assert tree.sums() == found

    for one in requests:
        inside.append(one)
        tree.join(one)
        check()
    for one in requests:  # one goes on: its last node is filled, and another follows
        if one.pinned[-1][1] == 3:
            one.pinned.append((int(f"{one.pinned[-1][0]}0"), 1))
        else:
            one.pinned[-1] = (one.pinned[-1][0], 3)
        tree.follow(one)
        check()
    for one in data.draw(st.permutations(requests)):
        inside.remove(one)
        tree.leave(one)
        check()
    assert tree.sums() == SharedSums()


def test_a_private_rest_may_follow_a_part_of_what_others_share() -> None:
    """A preempted request hits its rest again, though its prefix ends within a shared node."""
    tree = PrefixTree(4)
    others = [request(index, (1, 2), (2, 3)) for index in range(2)]
    answers = [request(index, (1, 1), (-3, 5)) for index in (2, 3)]
    for one in (*others, answers[0]):
        tree.join(one)
    assert tree.sums() == SharedSums((3 + 2 + 2 * 3) * 4, (1 + 1 + 3) * 4, 3 + 2)
    tree.join(answers[1])
    assert tree.sums() == SharedSums((4 + 2 + 2 * 3 + 2 * 5) * 4, (2 + 3 + 5) * 4, 4 + 2 + 2)
    for one in others:
        tree.leave(one)
    assert tree.sums() == SharedSums(2 * 6 * 4, 6 * 4, 2)


def test_what_all_running_requests_have_in_common() -> None:
    chains = chains_of([[1, 2, 3], [1, 2, 4], [1, 2, 3]], [24, 24, 24], 8)
    kv = KVCache(100, 4, chains=chains)
    running: dict[Request, None] = {}
    for index in range(3):
        one = Request(index, 0, 24, 5, num_target_tokens=24)
        kv.pin(one, kv.lookup(one))
        kv.extend(one, 24)
        kv.register(one, 24)
        one.num_computed_tokens = 24
        running[one] = None
    first, *_, last = running
    assert common_prefix(kv, running, [], 3) == SharedSums(48, 16, 3)
    assert common_prefix(kv, {first: None}, [], 1) == SharedSums()
    # One of them is still computing what the others have: up to there, in whole blocks.
    last.num_computed_tokens = 11
    assert common_prefix(kv, running, [last], 2) == SharedSums(16, 8, 2)
    assert common_prefix(kv, running, [], 0) == SharedSums()


@st.composite
def sharing(draw: st.DrawFn) -> StepShape:
    """A step whose decodes share some of their contexts."""
    seqs, reads = draw(st.integers(2, 300)), draw(st.integers(0, 20_000))
    sharers = draw(st.integers(2, seqs))
    own = draw(st.integers(0, 2000))
    prefills = draw(st.sampled_from([0, 0, 1, 9]))
    tokens = prefills * draw(st.integers(1, 100))
    parts = sharers * draw(st.integers(1, 3)) if reads else 0
    return StepShape(
        *(seqs, sharers * reads + seqs * own, prefills, tokens, 0, causal_pairs(0, tokens)),
        seqs + prefills,
        shared=(sharers * reads, reads, parts),
    )


@pytest.mark.parametrize("case", CASES)
@settings(deadline=None, max_examples=30)
@given(shape=sharing(), steps=st.integers(1, 50))
def test_prices_are_one(case: tuple[str, str, str], shape: StepShape, steps: int) -> None:
    """A run of steps, the split by account, the table for people: all say the same."""
    cost = compiled(*case)
    columns = columns_of(shape, shares_prefixes=True)
    gpu_ns = cost.price(shape).gpu_ns
    split = cost.split(columns)
    assert sum(float(s[0]) for s in split.values()) * 1e9 == pytest.approx(gpu_ns, abs=1)
    assert all(s[0] >= -1e-12 for s in split.values())
    rows = cost.describe(shape)
    assert sum(row.seconds for row in rows) * 1e9 == pytest.approx(gpu_ns, abs=1)
    many = step_seconds(cost.kernels, cost.graph_sizes, columns)
    assert many.gpu_s[0] * 1e9 == pytest.approx(gpu_ns, rel=1e-3)  # its own table of imbalance
    if shape.prefill_tokens:
        return
    run = cost.price_decodes(shape, steps)
    one_by_one = [
        cost.price(shape._replace(decode_context_tokens=shape.decode_context_tokens + i * seqs))
        for seqs in (shape.decode_seqs,)
        for i in range(steps)
    ]
    assert np.diff(run.gpu_cumulative_ns, prepend=0).tolist() == [p.gpu_ns for p in one_by_one]
    assert run.first == one_by_one[0]


@pytest.mark.parametrize("case", CASES)
def test_nothing_shared_costs_what_it_did(case: tuple[str, str, str]) -> None:
    model, gpu, _ = case
    plain, cost = compiled(model, gpu, "none"), compiled(*case)
    for seqs, context in ((1, 100), (64, 2000), (300, 900)):
        shape = StepShape(seqs, seqs * context, logits=seqs)
        assert cost.price(shape._replace(shared=(0, 0, 0))) == plain.price(shape)


def test_a_shared_prefix_is_read_once_and_computed_by_each() -> None:
    plain, cost = (compiled("llama-3.1-8b", "h200", kernel) for kernel in ("none", "tree"))
    seqs, prefix = 256, 8192
    each = StepShape(seqs, seqs * (prefix + 100), logits=seqs)
    once = each._replace(shared=(seqs * prefix, prefix, seqs))
    rows = {row.name: row for row in cost.describe(once)}
    before = {row.name: row for row in plain.describe(each)}["decode_attention"]
    shared, own = rows["shared_prefix_attention"], rows["decode_attention"]
    assert shared.state_bytes == prefix * 131_072
    assert shared.flops + own.flops == before.flops
    assert shared.state_bytes + own.state_bytes == before.state_bytes - (seqs - 1) * prefix * 131072
    # 2.7 TB of keys and values fewer, at 4.8 TB/s; FLOPs are 4 x 4096 x 32 a pair, at 989 TFLOP/s.
    assert shared.seconds > 4 * 4096 * 32 * seqs * prefix / 989e12
    assert shared.seconds + own.seconds < before.seconds / 10
    doubled = cost.price(once._replace(shared=(seqs * prefix, prefix, 2 * seqs)))
    assert doubled.gpu_ns > cost.price(once).gpu_ns  # more parts to merge


def test_vllm_cascades_by_its_own_rule() -> None:
    """`use_cascade_attention`: 256 tokens, 8 requests, then rounds of blocks on the SMs."""

    def cascades(model: str, seqs: int, prefix: int, prefills: int = 0) -> bool:
        cost = compiled(model, "h200" if model == "llama-3.1-8b" else "a100", "cascade")
        shape = StepShape(seqs, seqs * prefix, prefills, prefills, logits=seqs)
        shared = shape._replace(shared=(seqs * prefix, prefix, seqs))
        used = cost.price(shared).gpu_ns != cost.price(shape).gpu_ns
        if not prefills:  # no full graph then
            assert (cost.price(shared).launch_ns != cost.price(shape).launch_ns) == used
        return used

    assert not cascades("llama-2-7b", 8, 255)
    assert cascades("llama-2-7b", 8, 256)
    assert not cascades("llama-2-7b", 7, 256)
    assert cascades("llama-2-7b", 7, 256, prefills=1)
    # Grouped queries, 132 SMs: 32 blocks walk 16 tiles in turn; split-KV has 8 x seqs x 16 tiles
    # over 132 SMs, which is 16 rounds at 16 sequences and 17 at 17.
    assert not cascades("llama-3.1-8b", 16, 2048)
    assert cascades("llama-3.1-8b", 17, 2048)


@pytest.mark.parametrize(
    ("model", "kernel", "words"),
    [
        ("gemma-3-27b", "tree", "sliding"),
        ("kimi-linear-48b-a3b", "tree", "kda"),
        ("deepseek-v3", "cascade", "mla"),
    ],
)
def test_kernels_that_do_not_exist_are_refused(model: str, kernel: str, words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        compile_step_cost(
            load_model(model),
            load_gpu("h200"),
            StepOptions(shared_prefix_attention=kernel, **LIMITS),
        )


def test_ranks_with_caches_of_their_own_are_refused() -> None:
    with pytest.raises(ScenarioError, match="data-parallel"):
        compile_step_cost(
            load_model("qwen3-30b-a3b"),
            load_gpu("h200"),
            StepOptions(
                layout=Layout(data_parallel_size=2),
                shared_prefix_attention="tree",
                **LIMITS,
            ),
        )


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(ScenarioError, match="none, cascade, tree"):
        EngineConfig(shared_prefix_attention="forest")


CHAT = {
    "input_tokens": {"fixed": 100},
    "output_tokens": {"fixed": 200},
    "system_prompts": {"tokens": 4000},
}


def scenario(prefix_caching: bool = True, **engine: str) -> Scenario:
    """Chat behind one system prompt of 4,000 tokens."""
    return Scenario.model_validate(
        {
            "model": "llama-3.1-8b",
            "engine": {"max_num_batched_tokens": 2048, "max_num_seqs": 256, **engine},
            "bands": False,
            "kv": {"enable_prefix_caching": prefix_caching},
            "workload": {"num_requests": 250, "rate_per_s": 40.0, "generator": CHAT},
        }
    )


def test_a_system_prompt_read_once_makes_decoding_faster() -> None:
    results = {
        kernel: simulate(scenario(shared_prefix_attention=kernel))
        for kernel in ("none", "cascade", "tree")
    }
    tpot = {kernel: float(r.requests.tpot_s.median()) for kernel, r in results.items()}
    assert tpot["tree"] < 0.9 * tpot["none"]
    assert tpot["tree"] < tpot["cascade"] < tpot["none"]
    for kernel, result in results.items():
        steps = result.steps
        assert ("decode_shared_tokens" in steps.columns) == (kernel != "none")
        accounts = [name for name in result.requests.columns if name.endswith("_ns")]
        e2e_ns = result.requests.e2e_s * 1e9
        assert (result.requests[accounts].sum(axis=1) - e2e_ns).abs().max() <= 1
    shared = results["tree"].steps
    busy = shared[shared.decode_seqs > 1]
    assert (busy.decode_shared_reads >= 3984).mean() > 0.9  # whole blocks of 16


def test_without_a_prefix_cache_there_is_nothing_to_read_once() -> None:
    with pytest.raises(ScenarioError, match="enable_prefix_caching"):
        simulate(scenario(prefix_caching=False, shared_prefix_attention="tree"))


def test_hydragen_is_met() -> None:
    (section,) = hydragen.sections()
    assert [row.what for row in section.rows if not row.is_met] == []
