"""B3: Kimi Linear against its twin with latent attention in every layer (arXiv 2510.26692).

The report names neither GPU nor layout. Both models are priced as eight tensor-parallel ranks of
one node would run them, step by step, on each Hopper part: no constant comes from the report.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from costmodels.hardware.gpus import GpuSpec, load_gpu
from costmodels.models.catalog import load_model
from costmodels.models.layers.mla import Mla
from costmodels.models.spec import ModelSpec
from scenarios.build.replica import Replica
from sim.shape import chunk_shape, decode_shape
from tests.properties.scenarios import replica_of
from tests.published.rows import Row, Section

K, M = 1024, 1024 * 1024
GPUS = ("H800-SXM", "H100-SXM", "H200-SXM")
RANKS, CHUNK, MOST_SEQS = 8, 8192, 64


@cache
def models() -> tuple[ModelSpec, ModelSpec]:
    """Kimi Linear, and the twin: its own latent attention in the KDA layers' place."""
    kimi = load_model("kimi-linear-48b-a3b")
    (latent,) = {group.mixer for group in kimi.layers if isinstance(group.mixer, Mla)}
    layers = tuple(replace(group, mixer=latent) for group in kimi.layers)
    return kimi, replace(kimi, name="MLA twin", layers=layers)


def gpu_of(name: str) -> GpuSpec:
    """The part, with decode attention spread evenly over it.

    FlashMLA cuts one long context into as many pieces as there are SMs; the schedule that vLLM's
    kernels are priced with stops at 32.
    """
    return replace(load_gpu(name), num_sms=None)


@cache
def replicas(gpu_name: str, ranks: int = RANKS) -> tuple[Replica, Replica]:
    """Both models on this part."""
    limits = {"max_num_batched_tokens": CHUNK, "max_num_seqs": MOST_SEQS}
    sections = {
        "engine": {"tensor_parallel_size": ranks, **limits},
        "kv": {"gpu_memory_utilization": 0.9},
    }
    kimi, twin = (
        replace(replica_of(model, gpu_name, **sections), gpu=gpu_of(gpu_name)) for model in models()
    )
    return kimi, twin


def decode_ms(replica: Replica, seqs: int, context: int) -> float:
    """Return the time of one decode step in ms."""
    clips = replica.model.clip_tokens
    return replica.cost.price(decode_shape(seqs, context, clips)).gpu_ns * 1e-6


def decode_ratio(gpu_name: str, context: int, ranks: int = RANKS) -> float:
    """The twin's step time over Kimi Linear's at batch 1."""
    kimi, twin = (decode_ms(one, 1, context) for one in replicas(gpu_name, ranks))
    return twin / kimi


def prefill_ratio(gpu_name: str, tokens: int, ranks: int = RANKS) -> float:
    """Return the twin's prefill time over Kimi Linear's, for a prompt computed chunk by chunk."""
    kimi, twin = (
        sum(
            one.cost.price(chunk_shape(start, CHUNK, one.model.clip_tokens)).gpu_ns
            for start in range(0, tokens, CHUNK)
        )
        for one in replicas(gpu_name, ranks)
    )
    return twin / kimi


def filled(gpu_name: str, context: int) -> list[tuple[int, float]]:
    """(Sequences that memory holds, milliseconds a token): Kimi Linear, the twin.

    A latent is one head, so every rank keeps all of it.
    """
    found = []
    for one in replicas(gpu_name):
        blocks = one.memory.blocks
        a_sequence = blocks.layout.pages(context, blocks.block_size)
        seqs = (blocks.num_gpu_blocks - 1) // a_sequence
        found.append((seqs, decode_ms(one, seqs, context) / seqs))
    return found


def rows(gpu_name: str) -> list[Row]:
    """One part's figures beside the report's."""
    (_, kimi_ms), (_, twin_ms) = filled(gpu_name, M)
    return [
        Row("decode 16K", decode_ratio(gpu_name, 16 * K), 1.0, "x", 0.10),
        Row("decode 512K", decode_ratio(gpu_name, 512 * K), 1.8, "x", 0.10),
        Row("decode 1M", decode_ratio(gpu_name, M), 2.2, "x", 0.10),
        Row("prefill 512K", prefill_ratio(gpu_name, 512 * K), 2.3, "x", 0.15),
        Row("prefill 1M", prefill_ratio(gpu_name, M), 2.9, "x", 0.15),
        Row("decode 1M, memory filled", twin_ms / kimi_ms, 6.3, "x", 0.25),
    ]


def sections() -> list[Section]:
    """A section a part."""
    found = []
    for gpu_name in GPUS:
        (kimi_seqs, kimi_ms), (twin_seqs, twin_ms) = filled(gpu_name, M)
        alone = [decode_ratio(gpu_name, M, 1), prefill_ratio(gpu_name, M, 1)]
        found.append(
            Section(
                f"B3 Kimi Linear against its MLA twin, eight {gpu_name}",
                f"bf16, tensor-parallel, chunks of {CHUNK:,} tokens, batch 1 where not filled; the "
                "report's GPU and layout are not stated, so ratios alone; nothing fitted to it",
                rows(gpu_name),
                (
                    f"filled: {kimi_seqs} sequences at {kimi_ms:.2f} ms a token and {twin_seqs} at "
                    f"{twin_ms:.2f}; published 1.84 and 11.48: 8.5 GB of state in 1.84 ms would be "
                    "4.6 TB/s, so its ranks read less than whole latents, or its GPU is not one of "
                    "these",
                    f"on one such GPU alone, were there room: 1M decode {alone[0]:.2f}, prefill "
                    f"{alone[1]:.2f}: the layout matters as much as the part",
                ),
            )
        )
    return found
