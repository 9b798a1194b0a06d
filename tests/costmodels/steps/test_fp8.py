"""fp8 matrices and KV cache: half the bytes, a higher peak, and what stays in 16 bits."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels.hardware.gpus import load_gpu
from costmodels.hardware.roofline import operator_seconds
from costmodels.memory.device import DevicePlan
from costmodels.models.catalog import load_model
from costmodels.models.hf_config import read_hf_config
from costmodels.models.spec import ModelSpec, quantized
from costmodels.steps.compile import StepOptions, compile_step_cost
from costmodels.steps.cost import StepCost
from costmodels.work import linear
from scenarios.build.resolve import resolve
from scenarios.files.load import parse_scenario
from sim import accounts
from sim.errors import ScenarioError
from sim.shape import StepShape, causal_pairs

LLAMA, MOE = load_model("llama-3.1-8b"), load_model("qwen3-30b-a3b")


def compiled(model: ModelSpec, gpu: str = "h200") -> StepCost:
    return compile_step_cost(
        model, load_gpu(gpu), StepOptions(max_num_batched_tokens=8192, max_num_seqs=256)
    )


@pytest.mark.parametrize("model", [LLAMA, MOE], ids=["dense", "experts"])
def test_only_the_layers_matrices_are_halved(model: ModelSpec) -> None:
    fp8 = quantized(model, linear="fp8")
    assert model.weight_bytes == 2 * model.total_params
    assert fp8.weight_bytes == 2 * model.total_params - model.params().matrices
    tables = 2 * model.embedding_params
    others = model.total_params - model.params().matrices - tables
    assert 0 < others < 0.002 * model.total_params  # norms and routers
    assert fp8.kv_bytes_per_token == model.kv_bytes_per_token


def test_a_config_says_it() -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 100,
        "max_position_embeddings": 512,
        "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    }
    assert read_hf_config(config).linear_dtype == "fp8"
    assert read_hf_config({**config, "quantization_config": None}).linear_dtype == "bfloat16"


@pytest.mark.parametrize("model", [LLAMA, MOE], ids=["dense", "experts"])
def test_decodes_read_half_the_weights_and_prefill_computes_faster(model: ModelSpec) -> None:
    plain, fp8 = compiled(model), compiled(quantized(model, linear="fp8"))
    some = StepShape(16, 1600, logits=16)
    prompt = StepShape(
        prefill_seqs=1, prefill_tokens=8000, prefill_pairs=causal_pairs(0, 8000), logits=1
    )
    for shape, most in ((some, 0.9), (prompt, 0.92)):
        assert 0.5 < fp8.price(shape).gpu_ns / plain.price(shape).gpu_ns < most
    reads = {row.name: row.weight_bytes for row in fp8.describe(some)}
    before = {row.name: row.weight_bytes for row in plain.describe(some)}
    assert reads["qkv"] * 2 == before["qkv"]
    assert reads["lm_head"] == before["lm_head"]
    assert "quantise" in reads
    assert "quantise" not in before


def test_an_fp8_cache_holds_and_reads_half() -> None:
    fp8 = quantized(LLAMA, kv_cache="fp8")
    assert 2 * fp8.kv_bytes_per_token == LLAMA.kv_bytes_per_token

    def blocks(model: ModelSpec) -> int:
        gpu = load_gpu("h200")
        plan = DevicePlan(model, gpu, max_num_batched_tokens=8192, max_num_seqs=256)
        return plan.blocks.num_gpu_blocks

    assert blocks(fp8) // 2 == blocks(LLAMA)

    def state_ns(model: ModelSpec) -> int:
        cost = compiled(model)
        few, many = (cost.price(StepShape(64, n, logits=64)).gpu_ns for n in (64_000, 640_000))
        return many - few

    # It reads half the bytes, more slowly: its kernel converts them.
    assert 0.6 < state_ns(fp8) / state_ns(LLAMA) < 0.8


def test_a_device_without_fp8_is_refused() -> None:
    with pytest.raises(ScenarioError, match="A100-SXM-80GB has no known fp8 peak"):
        compiled(quantized(LLAMA, linear="fp8"), "a100")


def test_a_scenario_asks_for_it() -> None:
    scenario = {
        "model": "llama-3.1-8b",
        "engine": {"quantization": "fp8"},
        "kv": {"cache_dtype": "fp8"},
        "workload": {"preset": "azure-conv", "num_requests": 10},
    }
    model = resolve(parse_scenario(scenario)).model
    assert (model.linear_dtype, model.kv_cache_dtype) == ("fp8", "fp8")


def test_weight_only_integers_read_less_and_compute_64_rows_at_a_time() -> None:
    plain, w4 = compiled(LLAMA), compiled(quantized(LLAMA, linear="int4_g128"))
    some = StepShape(16, 1600, logits=16)
    prompt = StepShape(
        prefill_seqs=1, prefill_tokens=8000, prefill_pairs=causal_pairs(0, 8000), logits=1
    )
    assert w4.price(some).gpu_ns < 0.6 * plain.price(some).gpu_ns
    # Marlin against 16-bit GEMMs: 0.60 to 0.73 as fast from 256 rows on (vLLM PR 2497).
    assert 0.55 < plain.price(prompt).gpu_ns / w4.price(prompt).gpu_ns < 0.75
    precision = w4.shard.model.precision
    rows = np.array([32.0, 64.0, 128.0, 200.0])
    matrix = linear("matrix", 1, 4096, 28672, rows, precision, "int4_g128")
    priced, once = w4.kernels.price(matrix), operator_seconds(matrix, w4.gpu, w4.efficiency)
    assert (priced.work_s[:2] < 1.5 * once.work_s[:2]).all()  # a tile, with what unpacking takes
    assert priced.compute_bound[2:].all()
    assert priced.work_s[3] == pytest.approx(2 * priced.work_s[2])  # four tiles, and two
    assert priced.operator is matrix
    mxfp4 = compiled(quantized(LLAMA, linear="mxfp4"))
    assert 0.99 < mxfp4.price(prompt).gpu_ns / plain.price(prompt).gpu_ns < 1.15
    assert w4.evidence()[accounts.DECODE_WEIGHT_READS] == "assumed"  # what unpacking takes
    assert plain.evidence()[accounts.DECODE_WEIGHT_READS] == "fitted"
