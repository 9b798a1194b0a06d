"""A1: YOCO against a transformer of its size, 3B on an H100 (arXiv 2405.05254, recalled figures).

The upper half of YOCO reads one global cache, the lower half keeps windows: prompts leave before
the upper half. Dimensions are those of its 3B models; windows of 1,024 tokens stand for the gated
retention of the lower half.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from costmodels.models.hf_config import read_hf_config
from costmodels.models.spec import ModelSpec
from sim.shape import chunk_shape
from tests.properties.scenarios import replica_of
from tests.published.rows import Row, Section

K = 1024
_CHUNK = 8192
_GQA: dict[str, Any] = {"heads": 24, "kv_heads": 8, "head_dim": 128}
_FFN: dict[str, Any] = {"kind": "dense", "width": 8192}


@cache
def models() -> tuple[ModelSpec, ModelSpec]:
    """YOCO-3B, and the transformer beside it."""
    window = {"kind": "sliding", "window": 1024, "gqa": _GQA}
    memory = {"kind": "yoco_memory", "kv_heads": 8, "head_dim": 128}
    cross = {"kind": "shared_kv", "gqa": _GQA}
    halves = [
        {"count": 13, "mixer": window, "ffn": _FFN},
        {"mixer": memory, "norms": 1, "all_reduces": 0},
        {"count": 13, "skips_prompt": True, "mixer": cross, "ffn": _FFN},
    ]
    plain = [{"count": 26, "mixer": {"kind": "gqa", **_GQA}, "ffn": _FFN}]
    yoco, transformer = (_model(layers) for layers in (halves, plain))
    return yoco, transformer


def prefill_s(model: ModelSpec, tokens: int) -> float:
    """GPU seconds of one prompt in chunks, on an H100."""
    limits = {"max_num_batched_tokens": _CHUNK, "max_num_seqs": 16}
    cost = replica_of(model, "h100", engine=limits).cost
    chunks = (
        chunk_shape(start, min(_CHUNK, tokens - start), model.clips)
        for start in range(0, tokens, _CHUNK)
    )
    return sum(cost.price(chunk).gpu_ns for chunk in chunks) / 1e9


def prefill_ratio(tokens: int) -> float:
    """The transformer's prefill time over YOCO's."""
    yoco, transformer = models()
    return prefill_s(transformer, tokens) / prefill_s(yoco, tokens)


def memory_ratio(tokens: int) -> float:
    """Weights and cache of one sequence, transformer over YOCO."""
    yoco, transformer = (model.weight_bytes + model.state_bytes(tokens) for model in models())
    return transformer / yoco


def sections() -> list[Section]:
    """Return the section of memory and prefill."""
    yoco, transformer = models()
    return [
        Section(
            "A1 YOCO-3B against a transformer",
            "one prompt, one H100, bf16; published figures are recalled, so no bar",
            [
                Row("memory at 1M", memory_ratio(1024 * K), 9.4, "x"),
                Row("prefill at 512K", prefill_ratio(512 * K), 180 / 6, "x"),
                Row("transformer's prefill at 512K", prefill_s(transformer, 512 * K), 180, "s"),
                Row("YOCO's prefill at 512K", prefill_s(yoco, 512 * K), 6, "s"),
            ],
            (
                f"at 1M the ratio is {prefill_ratio(1024 * K):.0f}: YOCO's prompts leave before "
                "the layers that read the whole context, so its prefill is linear",
                "the published times are of the authors' own kernels: both are 2 to 3 times ours",
            ),
        )
    ]


def _model(layers: list[dict[str, Any]]) -> ModelSpec:
    config = {
        "model_type": "layers",
        "hidden_size": 3072,
        "vocab_size": 100_288,
        "max_position_embeddings": 1 << 20,
        "layers": layers,
    }
    return read_hf_config(config, name="3B")
