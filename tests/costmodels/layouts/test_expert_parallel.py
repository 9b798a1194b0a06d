"""Experts on ranks: how unevenly tokens are distributed, and the cost of moving them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.datafile import read_data
from costmodels.hardware.efficiency import load_efficiency
from costmodels.hardware.gpus import GpuSpec, load_gpu
from costmodels.hardware.links import exchange_seconds, travelled
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import shard
from costmodels.models.catalog import load_model
from costmodels.models.expert_load import (
    BusiestRank,
    ExpertLoad,
    busiest_rank,
    expert_chances,
    place,
)
from costmodels.work import Exchange, Operator, operator
from sim.errors import ScenarioError

EVEN = ExpertLoad()


def busiest(
    experts: int, top_k: int, ranks: int, tokens: int, load: ExpertLoad = EVEN
) -> BusiestRank:
    return busiest_rank(place(experts, top_k, ranks, load), np.array([float(tokens)]))


@pytest.mark.parametrize(
    ("experts", "top_k", "ranks"), [(256, 8, 8), (256, 8, 32), (128, 8, 4), (8, 2, 8), (8, 2, 4)]
)
@pytest.mark.parametrize("tokens", [1, 4, 32, 256])
def test_the_busiest_rank_is_that_of_random_routing(
    experts: int, top_k: int, ranks: int, tokens: int
) -> None:
    draw = np.random.default_rng(experts + ranks + tokens)
    most, reached = [], []
    for _ in range(200):
        keys = draw.random((tokens, experts))
        chosen = np.argpartition(keys, top_k - 1, axis=1)[:, :top_k]
        counts = np.bincount(chosen.ravel(), minlength=experts).reshape(ranks, -1)
        most.append(counts.sum(axis=1).max())
        reached.append((counts > 0).sum(axis=1).max())
    found = busiest(experts, top_k, ranks, tokens)
    assert found.rows[0] == pytest.approx(np.mean(most), rel=0.11)
    # The rank with most tokens is not always the one with most experts.
    assert 0.6 * np.mean(reached) < found.experts[0] < 1.02 * np.mean(reached)


def test_known_imbalances() -> None:
    """One rank has all; many tokens spread evenly; all tokens to one rank's experts."""
    one = busiest(256, 8, 1, 100)
    assert (one.rows[0], one.imbalance[0]) == (800.0, 1.0)
    assert busiest(256, 8, 32, 1_000_000).imbalance[0] == pytest.approx(1.0, abs=0.01)
    loads = ExpertLoad(loads=(1.0, 1.0, *[0.0] * 14))
    found = busiest(16, 2, 8, 500, loads)
    assert (found.rows[0], found.experts[0]) == (1000.0, 2.0)
    assert found.imbalance[0] == pytest.approx(8.0)


@settings(max_examples=40, deadline=None)
@given(
    experts=st.integers(2, 128),
    share=st.floats(0.01, 1.0),
    ranks=st.integers(1, 64),
    skew=st.floats(0.0, 2.0),
    tokens=st.integers(1, 5000),
)
def test_busiest_rank_bounds(
    experts: int, share: float, ranks: int, skew: float, tokens: int
) -> None:
    top_k, ranks = max(1, round(share * experts)), min(ranks, experts)
    load = ExpertLoad(skew=skew)
    chances = expert_chances(experts, top_k, load)
    assert chances.sum() == pytest.approx(top_k)
    assert chances.max() <= 1 + 1e-9
    counts = np.arange(0.0, tokens + 1, max(1, tokens // 50))
    placement = place(experts, top_k, ranks, load)
    found = busiest_rank(placement, counts)
    assert found.rows[0] == found.experts[0] == 0
    assert (found.imbalance >= 1 - 1e-9).all()
    assert (found.experts <= min(experts, placement.most_experts) + 1e-9).all()
    assert (np.diff(found.rows) >= -1e-6).all()
    assert (np.diff(found.experts) >= -1e-6).all()


@pytest.mark.parametrize("skew", [0.3, 0.6, 1.0])
def test_copies_of_popular_experts_even_the_load(skew: float) -> None:
    load = ExpertLoad(skew=skew)
    skews = [
        place(256, 8, 32, load).skew,
        place(256, 8, 32, load, balanced=True).skew,
        place(256, 8, 32, load, balanced=True, redundant=32).skew,
    ]
    assert skews == sorted(skews, reverse=True)
    assert skews[2] == pytest.approx(1.0, abs=0.01)


def all_to_all(name: str, ranks: int, tokens: float, bytes_: float, gpu: GpuSpec) -> Operator:
    elements = 7168 * 8 * tokens
    exchange = Exchange(
        ranks=ranks, in_node=min(ranks, gpu.fabric_gpus), mode="low_latency", copies=8
    )
    return operator(
        name,
        "all_to_all",
        1,
        np.array([tokens]),
        comm_bytes=np.array([elements * bytes_]),
        exchange=exchange,
    )


def test_published_latencies_of_deepep() -> None:
    """H800, 128 tokens a rank. Eight ranks are what its NVLink share was taken from; the network's
    constants are of H100 nodes."""
    published = read_data("hardware/links.yaml")["published"]
    gpu = load_gpu(published["gpu"])
    for place_, ranks in enumerate(published["ranks"]):
        for name, bytes_ in (("dispatch", 1 + 4 / 128), ("combine", 2.0)):
            op = all_to_all(name, ranks, published["tokens"], bytes_, gpu)
            micros = 1e6 * float(exchange_seconds(op, gpu, load_efficiency(gpu)).total_s[0])
            stated = published[f"{name}_us"][place_]
            print(f"EP{ranks} {name}: {micros:.0f} us, published {stated}")
            assert micros == pytest.approx(stated, rel=0.25)


def test_what_crosses_which_link() -> None:
    low = Exchange(ranks=32, in_node=8, mode="low_latency", copies=8)
    assert travelled(low, 8, 4) == pytest.approx((8 * 7 / 32, 8 * 24 / 32))
    once = Exchange(ranks=32, in_node=8, mode="throughput", copies=8)
    _, by_network = travelled(once, 8, 4)
    assert by_network == pytest.approx(3 * (1 - 0.75**8))  # of 3 other nodes, those it goes to


def test_no_network_no_ranks_beyond_a_node() -> None:
    gpu = load_gpu("mi300x")
    op = all_to_all("dispatch", 16, 8.0, 1.0, gpu)
    with pytest.raises(ScenarioError, match="no known network between nodes: 16 ranks"):
        exchange_seconds(op, gpu, load_efficiency(gpu))


def test_sums_over_several_nodes_take_longer() -> None:
    """16 ranks in one rack, and in two nodes of 8."""
    gpu = load_gpu("h100")
    row = np.array([64.0])

    def seconds(kind: str, near: int) -> float:
        op = operator(
            "x",
            kind,  # type: ignore[arg-type]
            1,
            row,
            comm_bytes=row * 1e6,
            exchange=Exchange(ranks=16, in_node=near),
        )
        return float(exchange_seconds(op, gpu, load_efficiency(gpu)).total_s[0])

    for kind in ("all_gather", "reduce_scatter", "all_reduce"):
        assert seconds(kind, 16) < seconds(kind, 8) < seconds(kind, 2)


def test_racks_of_nvlink() -> None:
    """Dispatch among 64 GPUs stays on NVLink in a GB200 rack."""
    gb200, b200 = load_gpu("gb200"), load_gpu("b200")
    rack, nodes = (
        float(
            exchange_seconds(
                all_to_all("dispatch", 64, 128.0, 1.0, gpu), gpu, load_efficiency(gpu)
            ).total_s[0]
        )
        for gpu in (gb200, b200)
    )
    assert rack < nodes / 2


@pytest.mark.parametrize(
    ("model", "layout", "reason"),
    [
        ("llama-3.1-8b", Layout(data_parallel_size=2), "no experts for ranks to share"),
        ("llama-3.1-8b", Layout(enable_expert_parallel=True), "it has no experts"),
        ("llama-3.1-8b", Layout(pipeline_parallel_size=33), "more than its 32 layers"),
        (
            "qwen3-30b-a3b",
            Layout(data_parallel_size=129, enable_expert_parallel=True),
            "129 ranks are more than its 128 experts",
        ),
        (
            "qwen3-30b-a3b",
            Layout(data_parallel_size=5, enable_expert_parallel=True, enable_eplb=True),
            "num_redundant_experts 2 would do",
        ),
        (
            "qwen3-30b-a3b",
            Layout(data_parallel_size=4, enable_expert_parallel=True, num_redundant_experts=4),
            "needs enable_eplb",
        ),
        ("qwen3-30b-a3b", Layout(data_parallel_size=5), "expert width 768 is not a multiple of 5"),
        ("qwen3-30b-a3b", Layout(tensor_parallel_size=3), "sizes that do: 1, 2, 4"),
        ("qwen3-30b-a3b", Layout(data_parallel_size=2, enable_dbo=True), "enable_dbo overlaps"),
        (
            "qwen3-30b-a3b",
            Layout(data_parallel_size=2, all2all_backend="deepep_low_latency"),
            "needs enable_expert_parallel",
        ),
        (
            "qwen3-30b-a3b",
            Layout(expert_load=ExpertLoad(loads=(1.0, 2.0))),
            "2 expert_loads for its 128 experts",
        ),
        ("qwen3-30b-a3b", Layout(data_parallel_size=0), "must be at least 1"),
    ],
)
def test_layouts_that_do_not_fit_say_why(model: str, layout: Layout, reason: str) -> None:
    with pytest.raises(ScenarioError, match=reason):
        shard(load_model(model), layout)
