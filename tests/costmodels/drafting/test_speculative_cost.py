"""Prices of steps that verify drafts: by parts, equal in jumps and steps, and the cost of
verifying."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from costmodels.drafting.speculative_cost import SpeculativeStepCost
from costmodels.layouts.draft_layout import draft_weight_bytes
from costmodels.layouts.shard import shard
from costmodels.models.catalog import load_model
from costmodels.models.drafters import make_drafter, method_facts
from costmodels.steps.compiled import risen_steps
from scenarios.build.builder import build
from scenarios.build.replica import Replica
from scenarios.build.resolve import resolve
from scenarios.files.load import parse_scenario
from sim import accounts
from sim.errors import ScenarioError
from sim.protocols import Rises
from sim.shape import ClippedSums, StepShape, shape_columns, shape_values

METHODS: dict[str, dict[str, Any]] = {
    "eagle": {"method": "eagle"},
    "eagle tree": {"method": "eagle", "tree": "best", "num_speculative_tokens": 16},
    "mtp": {"method": "mtp"},
    "medusa": {"method": "medusa"},
    "ngram": {"method": "ngram"},
    "dflash": {"method": "dflash"},
    "draft model": {"method": "draft_model", "model": "qwen3-4b"},
    "switched off": {"method": "eagle", "drafts_by_seqs": {1: 5, 4: 2, 8: 0}},
}
SERVED: dict[str, dict[str, Any]] = {
    "dense": {"model": "qwen3-8b"},
    "windows": {"model": "gpt-oss-20b"},
    "experts, two ranks": {
        "model": "qwen3-30b-a3b",
        "engine": {"data_parallel_size": 2, "enable_expert_parallel": True},
    },
    "latent": {
        "model": "deepseek-v3",
        "engine": {"data_parallel_size": 8, "enable_expert_parallel": True},
    },
    "measured tables": {"model": "qwen3-8b", "engine": {"operators": "ours"}},
}
WORKLOAD = {"preset": "azure-conv", "rate_per_s": 1.0, "num_requests": 10}


def built(method: dict[str, Any] | None, served: dict[str, Any]) -> Replica:
    """A scenario of it."""
    engine = {**served.get("engine", {}), "speculative": method}
    return resolve(parse_scenario({"workload": WORKLOAD, **served, "engine": engine}))


def cost_of(method: str, served: str) -> tuple[SpeculativeStepCost, Replica]:
    """Return the step cost of a method, and the replica it prices."""
    found = built(METHODS[method], SERVED[served])
    assert isinstance(found.cost, SpeculativeStepCost)
    return found.cost, found


def verify(found: Replica, seqs: int, context: int, drafts: int) -> StepShape:
    """A step of equal decodes that verifies so many drafts of each."""
    clips = tuple(
        value
        for clip in found.model.clips
        if isinstance(clip, int)
        for value in (seqs * min(context, clip), 0, 0, 0)
    )
    rises = (0,) * (len(clips) // len(ClippedSums._fields))
    return StepShape(
        seqs,
        seqs * context,
        logits=seqs * (1 + drafts),
        clipped=clips,
        speculated=(seqs * drafts, seqs * drafts // 2, 0, *rises),
    )


@pytest.mark.parametrize("served", SERVED)
@pytest.mark.parametrize("method", ["eagle", "eagle tree", "dflash", "medusa", "mtp"])
def test_a_run_costs_what_its_steps_cost(method: str, served: str) -> None:
    """To the nanosecond, whatever contexts grow by; and the split covers it."""
    if served == "latent" and method != "mtp":
        pytest.skip("the layer of a latent model drafts by itself")
    cost, found = cost_of(method, served)
    assert found.speculation is not None
    drafts = found.speculation.speculation.most_drafts
    for seqs, context in ((1, 700), (7, 3000)):
        shape = verify(found, seqs, context, drafts)
        growths = np.random.default_rng(0).integers(seqs, seqs * (1 + drafts) + 1, 5).tolist()
        context_rises = [0, *np.cumsum(growths).tolist()]
        clip_rises = [context_rises for _ in range(len(shape.clipped) // 4)]
        run = cost.price_rounds(shape, Rises(context_rises, clip_rises))
        each = [
            cost.price(step).gpu_ns for step in risen_steps(shape, Rises(context_rises, clip_rises))
        ]
        assert np.diff(run.gpu_cumulative_ns, prepend=0).tolist() == each
        assert run.shortest_ns == min(each)
        assert run.first == cost.price(shape)
        total = sum(values[0] for values in split(cost, found, shape).values())
        assert total * 1e9 == pytest.approx(each[0], rel=2e-3)


def split(cost: SpeculativeStepCost, found: Replica, shape: StepShape) -> dict[str, Any]:
    """One step by account."""
    names = shape_columns(found.model.clips, speculates=True)
    values = zip(names, shape_values(shape), strict=True)
    return cost.split({name: np.array([float(value)]) for name, value in values})


@pytest.mark.parametrize("method", METHODS)
def test_drafting_and_rejected_work_have_accounts(method: str) -> None:
    """Rejected work is none where all is accepted; without drafts a step is the target's own."""
    cost, found = cost_of(method, "dense")
    assert set(cost.evidence()) == set(accounts.GPU_ACCOUNTS) - {accounts.ADAPTERS}
    assert found.speculation is not None
    drafts = found.speculation.speculation.drafts(1)
    shape = verify(found, 1, 2000, drafts)
    none = split(cost, found, shape._replace(speculated=(drafts, 0, 0)))
    every = split(cost, found, shape._replace(speculated=(drafts, drafts, 0)))
    assert every[accounts.SPECULATION_WASTE][0] == pytest.approx(0.0, abs=1e-12)
    assert none[accounts.SPECULATION_WASTE][0] > 0
    assert (none[accounts.SPECULATION_DRAFT][0] > 0) == (method != "ngram")
    plain = StepShape(1, 2000, logits=1)
    off = plain._replace(speculated=(0, 0, 0))
    target = built(None, SERVED["dense"]).cost
    assert cost.price(off).gpu_ns == target.price(plain).gpu_ns
    assert cost.price(shape).gpu_ns > target.price(plain).gpu_ns
    mixed = shape._replace(
        prefill_seqs=2, prefill_tokens=700, prefill_pairs=150_000, logits=shape.logits + 1
    )
    priced, parts = cost.price(mixed), split(cost, found, mixed)
    assert sum(v[0] for v in parts.values()) * 1e9 == pytest.approx(priced.gpu_ns, rel=5e-3)


def test_verifying_touches_more_experts_and_reads_a_context_once() -> None:
    """A sparse model pays for drafts with experts, a dense one hardly; contexts are read once."""
    ratios = {}
    for served in ("dense", "experts, two ranks"):
        cost, found = cost_of("eagle", served)
        plain = StepShape(2, 2000, logits=2, speculated=(0, 0, 0))
        ratios[served] = (
            cost.targets[5].price(verify(found, 2, 1000, 5)).gpu_ns / cost.price(plain).gpu_ns
        )
    assert ratios["dense"] < 1.25 < 1.4 < ratios["experts, two ranks"]
    cost, found = cost_of("eagle", "dense")
    long, short = (cost.targets[5].price(verify(found, 8, n, 5)).gpu_ns for n in (8000, 1000))
    far, near = (cost.targets[0].price(StepShape(8, 8 * n, logits=8)).gpu_ns for n in (8000, 1000))
    assert long - short == pytest.approx(far - near, rel=0.01)


def test_a_latent_cache_is_bound_by_compute_when_verified() -> None:
    """With hundreds of FLOPs a byte, several queries of one context cost more than one."""
    cost, found = cost_of("mtp", "latent")
    more = [
        cost.targets[n].price(verify(found, 64, 16000, n)).gpu_ns
        - cost.targets[n].price(verify(found, 64, 1000, n)).gpu_ns
        for n in (0, 1)
    ]
    assert more[1] > 1.2 * more[0]


@pytest.mark.parametrize("method", METHODS)
def test_weights_and_keys_of_a_drafter_take_memory(method: str) -> None:
    """Blocks are larger by the drafter's layers, and fewer; bytes still add up."""
    plain, with_draft = built(None, SERVED["dense"]), built(METHODS[method], SERVED["dense"])
    drafter, memory = with_draft.drafter, with_draft.memory
    assert drafter is not None
    blocks, plain_blocks = memory.blocks, plain.memory.blocks
    assert memory.draft_weight_bytes == draft_weight_bytes(drafter, with_draft.layout)
    assert memory.weight_bytes == plain.memory.weight_bytes + memory.draft_weight_bytes
    assert (blocks.block_bytes > plain_blocks.block_bytes) == drafter.has_state
    assert blocks.num_gpu_blocks <= plain_blocks.num_gpu_blocks
    parts = memory.weight_bytes + memory.workspace_bytes + blocks.num_bytes
    assert parts + blocks.free_bytes == memory.gpu.hbm_bytes
    if drafter.has_state:
        layers = memory.rank.model.num_layers / with_draft.model.num_layers
        if method != "draft model":
            assert blocks.block_bytes == pytest.approx(plain_blocks.block_bytes * layers)


def test_sizes_of_known_drafters() -> None:
    """EAGLE for a 7B model has 0.24B parameters (arXiv 2401.15077), Medusa's heads 0.59B."""
    target = load_model("llama-2-7b")
    eagle = make_drafter("eagle", target)
    assert eagle.draft is not None
    assert draft_weight_bytes(eagle, shard(target, 1).layout) / 2 == pytest.approx(0.24e9, rel=0.05)
    medusa = make_drafter("medusa", target, tree=[(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)])
    heads = 4 * (4096 * 4096 + 32000 * 4096)
    norms = 4 * 4096
    assert draft_weight_bytes(medusa, shard(target, 1).layout) == 2 * (heads + norms)
    assert method_facts("medusa").keeps_target == "no"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "draft_model"}, "needs a model"),
        ({"method": "eagle", "model": "qwen3-4b"}, "no model of its own"),
        ({"method": "mtp", "tree": "best"}, "drafts a chain"),
        ({"method": "eagle", "acceptance": 1.5}, "acceptance"),
        ({"method": "eagle", "acceptance": {"chat": 0.5}}, "names chat"),
        ({"method": "eagle", "drafts_by_seqs": {4: 300}}, "250"),
        ({"method": "eagle", "acceptance_file": "/no/such.csv"}, "cannot read"),
        ({"method": "eagle", "tree": [[0, 0]]}, "before its parent"),
        ({"method": "draft_model", "model": "gpt-oss-20b"}, "windows"),
        ({"method": "dflash", "draft_vocab_size": 100}, "is of method eagle"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], said: str) -> None:
    """With a message that says what would be right."""
    with pytest.raises(ScenarioError, match=said):
        _ = built(changes, SERVED["dense"]).cost


@pytest.mark.parametrize(
    ("served", "said"),
    [
        ({"model": "qwen3-8b", "engine": {"pipeline_parallel_size": 2}}, "pipeline"),
        ({"model": "qwen3-8b", "engine": {"scheduler": "vtc"}}, "vtc"),
        ({"model": "qwen3-8b", "engine": {"cpu_offload_gb": 2}}, "offload"),
        ({"model": "qwen3-8b", "engine": {"shared_prefix_attention": "cascade"}}, "shared_prefix"),
        ({"model": "kimi-linear-48b-a3b"}, "recurrent"),
    ],
)
def test_what_is_not_modelled_is_refused(served: dict[str, Any], said: str) -> None:
    """Rather than priced as if it were."""
    engine = {**served.get("engine", {}), "speculative": {"method": "eagle"}}
    with pytest.raises(ScenarioError, match=said):
        build(parse_scenario({"workload": WORKLOAD, **served, "engine": engine}))


@pytest.mark.parametrize("method", METHODS)
def test_the_account_of_a_device_has_the_drafter(method: str) -> None:
    """``fleetcast memory``: bytes still add up, and are those that the engine's plan has."""
    found = built(METHODS[method], SERVED["dense"])
    assert found.speculation is not None
    plan = found.memory
    assert sum(entry.num_bytes for entry in plan.entries(4096, 512)) == found.gpu.hbm_bytes
    assert plan.paged_bytes(16, 0) == plan.blocks.block_bytes
