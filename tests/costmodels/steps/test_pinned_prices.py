"""Prices of full-attention models stay what they were, to the nanosecond.

`step_prices.json` holds the prices of a grid of steps for models of each sort (dense, experts,
both; 16 bits, fp8, fp8 blocks; one rank and several). If a price is meant to change, rewrite the
file: ``python tests/costmodels/steps/test_pinned_prices.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from costmodels.hardware.gpus import load_gpu
from costmodels.layouts.layout import Layout
from costmodels.memory.device import DevicePlan
from costmodels.models.catalog import load_model
from costmodels.models.hf_config import read_hf_config
from costmodels.models.spec import ModelSpec, quantized
from costmodels.steps.compile import StepOptions, compile_step_cost
from sim.shape import StepShape, causal_pairs

FILE = Path(__file__).with_name("step_prices.json")
_SMALL: dict[str, Any] = {
    "num_hidden_layers": 12,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 32_000,
    "max_position_embeddings": 40_960,
}
_EXPERTS = {"num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 512}
_BLOCKS = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
CONFIGS: dict[str, dict[str, Any]] = {
    "minimax-blocks": _SMALL
    | _BLOCKS
    | {"model_type": "minimax_m2", "num_local_experts": 32, "num_experts_per_tok": 4},
    "dense-and-experts": _SMALL
    | _EXPERTS
    | {"model_type": "qwen3_moe", "mlp_only_layers": [0, 1], "decoder_sparse_step": 1},
    "llama-blocks": _SMALL | _BLOCKS | {"model_type": "llama", "attention_bias": True},
}
# case: model, GPU, ranks, format of the matrices, format of the KV cache.
CASES: dict[str, tuple[str, str, int, str | None, str]] = {
    "llama-8b": ("llama-3.1-8b", "h200", 1, None, "auto"),
    "llama-8b-fp8-tp2": ("llama-3.1-8b", "h200", 2, "fp8", "fp8"),
    "qwen3-moe": ("qwen3-30b-a3b", "h200", 1, None, "auto"),
    "qwen3-moe-fp8-tp4": ("qwen3-30b-a3b", "h100", 4, "fp8", "auto"),
    "opt-13b": ("opt-13b", "a100", 1, None, "auto"),
    "qwen2.5-7b-tp2": ("qwen2.5-7b", "a100", 2, None, "auto"),
    "qwen3-0.6b": ("qwen3-0.6b", "h200", 1, None, "fp8"),
    "llama-70b-tp16": ("llama-3.1-70b", "b200", 16, None, "auto"),
    "mixtral-tp8": ("mixtral-8x7b", "h100", 8, None, "auto"),
    "minimax-blocks": ("minimax-blocks", "h200", 1, None, "auto"),
    "minimax-blocks-tp2": ("minimax-blocks", "h200", 2, None, "fp8"),
    "dense-and-experts": ("dense-and-experts", "h200", 2, None, "auto"),
    "llama-blocks": ("llama-blocks", "b200", 1, None, "auto"),
}


def _model(name: str) -> ModelSpec:
    return read_hf_config(CONFIGS[name], name=name) if name in CONFIGS else load_model(name)


def _steps() -> list[StepShape]:
    steps = [
        StepShape(decode_seqs=n, decode_context_tokens=n * context, logits=n)
        for n in (1, 3, 17, 100, 256, 513)
        for context in (1, 700, 33_333)
    ]
    for tokens, start, decodes in (
        (1, 0, 0),
        (130, 0, 0),
        (1000, 0, 30),
        (2048, 5000, 0),
        (4000, 0, 96),
        (50, 90_000, 1),
    ):
        step = StepShape(decodes, decodes * 900, 1, tokens, start, causal_pairs(start, tokens))
        steps.append(step._replace(logits=decodes + 1))
    return steps


def _figures(case: str) -> dict[str, Any]:
    name, gpu, ranks, linear, kv_cache = CASES[case]
    model = quantized(_model(name), linear=linear, kv_cache=kv_cache)
    limits: dict[str, Any] = {"max_num_batched_tokens": 4096, "max_num_seqs": 1024}
    layout = Layout(tensor_parallel_size=ranks)
    cost = compile_step_cost(model, load_gpu(gpu), StepOptions(layout=layout, **limits))
    steps = _steps()
    runs = [cost.price_decodes(step, 5).gpu_cumulative_ns[-1] for step in steps[:18]]
    plan = DevicePlan(model, load_gpu(gpu), layout=layout, **limits)
    return {
        "prices": [list(cost.price(step)) for step in steps],
        "runs": runs,
        "workspace_bytes": plan.workspace_bytes - plan.communication_bytes,
        "block_bytes": plan.blocks.block_bytes,
    }


@pytest.mark.parametrize("case", CASES)
def test_prices_are_what_they_were(case: str) -> None:
    assert _figures(case) == json.loads(FILE.read_text(encoding="utf-8"))[case]


if __name__ == "__main__":
    rows = (f'"{case}": {json.dumps(_figures(case))}' for case in CASES)
    FILE.write_text("{" + ",\n".join(rows) + "}\n", encoding="utf-8")
