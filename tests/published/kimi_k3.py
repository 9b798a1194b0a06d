"""B4: Kimi-K3 on GB300, one sequence (vLLM blog, 2026-07-27), without DSpark, which speculates.

Sizes are exact; the speed is printed as priced, without tuning. The prompt lengths of SPEED-Bench
are not published; a context of 2,000 tokens replaces them, and hardly matters.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from costmodels.layouts.shard import shard
from costmodels.memory.paging import attention_block_tokens
from costmodels.models.catalog import load_model
from costmodels.models.spec import ModelSpec, quantized
from costmodels.steps.cost import StepCost
from costmodels.steps.describe import step_seconds
from sim.shape import decode_shape
from tests.properties.scenarios import replica_of
from tests.published.rows import Row, Section

PUBLISHED = {8: 111.0, 16: 118.0}
"""Tokens/s by tensor-parallel size."""
CONTEXT = 2000
MIB, GIB = 1 << 20, 1 << 30


@cache
def model() -> ModelSpec:
    """As published: experts in MXFP4, the rest in 16 bits; an fp8 cache."""
    return quantized(load_model("kimi-k3"), kv_cache="fp8")


@cache
def cost(ranks: int) -> StepCost:
    """On so many GB300."""
    limits = {"max_num_batched_tokens": 2048, "max_num_seqs": 16}
    engine = {"tensor_parallel_size": ranks, **limits}
    return replica_of(model(), "gb300", engine=engine).plain_cost()


def tokens_per_s(ranks: int) -> float:
    """Return the tokens per second of one sequence, as the slower of GPU and host allows."""
    return 1 / step_seconds(cost(ranks), decode_shape(1, CONTEXT), async_scheduling=True)


def parts_ms(ranks: int) -> dict[str, float]:
    """GPU time of a step by what binds it."""
    found = {"reads": 0.0, "links": 0.0, "launches": 0.0}
    for row in cost(ranks).describe(decode_shape(1, CONTEXT)):
        part = {"launch": "launches", "network": "links"}.get(row.bound, "reads")
        if row.comm_bytes:
            part = "links"
        found[part] += row.seconds * 1e3
    return found


def sections() -> list[Section]:
    """Return the sections of sizes and speed."""
    kimi = load_model("kimi-k3")
    # The published figure counts the convolutions' inputs in 32 bits; vLLM keeps them in 16.
    wide = replace(kimi, precision=replace(kimi.precision, conv="float32"))
    rank = shard(model(), 8)
    sizes = [
        Row("KV a token, 24 of 93 layers", float(kimi.growing_state_bytes_per_token), 27_648, "B"),
        Row("KV at 1M", float(kimi.growing_state_bytes_per_token) * 2**20 / GIB, 27.0, "GiB"),
        Row("KDA state a sequence", wide.fixed_state_bytes_per_sequence / MIB, 443.11, "MiB"),
        Row("block, TP8 fp8", attention_block_tokens(rank, 128), 1536, "tok"),
    ]
    speeds = [
        Row(f"batch 1, TP{ranks}", tokens_per_s(ranks), published, "tok/s")
        for ranks, published in PUBLISHED.items()
    ]
    notes = [
        f"TP{ranks}: {sum(parts.values()):.2f} ms on the GPU: memory and compute "
        f"{parts['reads']:.2f}, links {parts['links']:.2f}, launches {parts['launches']:.2f}"
        for ranks, parts in ((ranks, parts_ms(ranks)) for ranks in PUBLISHED)
    ]
    return [
        Section(
            "B4 Kimi-K3",
            "bf16 cache; block: fp8 cache",
            [row._replace(bar=0.001) for row in sizes],
        ),
        Section(
            "B4 Kimi-K3, one sequence on GB300",
            f"MXFP4 experts, fp8 cache, context {CONTEXT:,}, no speculation; launch and link "
            "constants are those of the H200 and of its NVLink domain",
            speeds,
            tuple(notes),
        ),
    ]
