"""Quantization in scenarios: bytes, units, unpacking, unsupported devices, quality."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from costmodels.formats import load_format
from costmodels.hardware.gpus import load_gpu
from costmodels.layouts.shard import shard, valid_sizes
from costmodels.models.catalog import load_model
from costmodels.models.quantization import load_method, method_names, quantize
from costmodels.steps.compile import StepOptions, compile_step_cost
from costmodels.steps.cost import StepCost
from costmodels.steps.precision_report import precision_rows
from scenarios.build.builder import build
from scenarios.commands import app
from scenarios.files.load import parse_scenario
from scenarios.run.simulate import simulate
from scenarios.schema import EngineOptions, KvOptions
from sim.errors import ScenarioError
from sim.shape import StepShape, chunk_shape, decode_shape, grown, joined
from tests.properties.priced_steps import columns_of

A100 = load_gpu("a100")
LLAMA = load_model("llama-3.1-8b")
WEIGHTS, CACHES = method_names(), method_names("cache")


def compiled(weights: str | None = None, cache: str = "auto", gpu: str = "a100") -> StepCost:
    device = load_gpu(gpu)
    model = quantize(LLAMA, device, weights=weights, cache_dtype=cache).model
    return compile_step_cost(
        model, device, StepOptions(max_num_batched_tokens=8192, max_num_seqs=512)
    )


COSTS = {
    "bf16": compiled(),
    "awq": compiled("awq"),
    "w8a8_int8": compiled("w8a8_int8"),
    "w4a8kv4": compiled("w4a8kv4"),
    "w4a4": compiled("w4a4"),
    "kivi2": compiled(None, "kivi2"),
    "int8 cache": compiled(None, "int8"),
}


def seconds(name: str, shape: StepShape) -> float:
    cost = COSTS[name]
    caps = cost.shard.model.clip_tokens
    if caps and shape.prefill_tokens:
        shape = chunk_shape(shape.prefill_context_tokens, shape.prefill_tokens, caps)
    elif caps:
        seqs = shape.decode_seqs
        shape = decode_shape(seqs, shape.decode_context_tokens // seqs, caps)
    return cost.price(shape).gpu_ns * 1e-9


def scenario(**sections: Any) -> Any:
    values = {
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "A100"},
        "workload": {
            "generator": {"input_tokens": {"fixed": 600}, "output_tokens": {"fixed": 40}},
            "rate_per_s": 2.0,
            "num_requests": 30,
        },
        "bands": False,
    }
    return parse_scenario(values | sections)


# What there is


def test_the_schema_names_what_is_on_file() -> None:
    options = get_args(EngineOptions.model_fields["quantization"].annotation)
    assert list(get_args(options[0])) == WEIGHTS
    caches = get_args(KvOptions.model_fields["cache_dtype"].annotation)
    assert list(caches) == ["auto", *CACHES]
    for section, names in (("weights", WEIGHTS), ("cache", CACHES)):
        for name in names:
            method = load_method(name, section)
            for stored in (method.weights, method.kv, method.fallback):
                assert not stored or load_format(stored).bits < 16
            assert method.what
            for found in method.quality:
                assert found.effect
                assert found.source


def test_quality_is_reported_and_gaps_are_said_to_be_gaps() -> None:
    told = CliRunner().invoke(app, ["list", "quantization"]).output
    for name in (*WEIGHTS, *CACHES):
        assert name in told
    assert told.count("answers:") >= len(WEIGHTS) + len(CACHES)
    assert "answers: not known here" in told
    assert "answers: no loss, Llama-3.1" in told
    explain = ["explain", "--model", "llama-3.1-8b", "--gpu", "A100"]
    known = CliRunner().invoke(app, [*explain, "--set", "engine.quantization=w4a4"]).output
    assert "less than 1% of accuracy lost" in " ".join(known.split())
    gap = CliRunner().invoke(app, [*explain, "--set", "engine.quantization=w4a8kv4"]).output
    assert "What w4a8kv4 does to answers: not known here." in gap
    plain = CliRunner().invoke(app, explain).output
    assert "answers" not in plain


# Bytes


def test_nothing_asked_leaves_the_checkpoint() -> None:
    assert quantize(LLAMA, A100) == (LLAMA, ())


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "opt-30b", "qwen2.5-7b"])
def test_fewer_bits_never_take_more_bytes_and_ranks_never_hold_more(name: str, model: str) -> None:
    spec = load_model(model)
    served = quantize(spec, A100 if name != "modelopt_fp4" else load_gpu("b200"), weights=name)
    assert served.model.weight_bytes < spec.weight_bytes
    sizes = valid_sizes(served.model, 8)
    held = [shard(served.model, ranks).weight_bytes for ranks in sizes]
    assert held == sorted(held, reverse=True)
    for other in WEIGHTS:
        narrow, wide = sorted(
            (name, other), key=lambda m: load_format(load_method(m).weights).bits_per_element
        )
        b200 = load_gpu("b200")
        if "w4a4" not in (narrow, wide):
            fewer, more = (quantize(spec, b200, weights=m).model for m in (narrow, wide))
            assert fewer.weight_bytes <= more.weight_bytes


@given(context=st.integers(1, 100_000))
def test_narrow_caches_take_no_more(context: int) -> None:
    whole = LLAMA.state_bytes(context)
    sizes = [
        quantize(LLAMA, A100, cache_dtype=name).model.state_bytes(context)
        for name in ("int8", "kivi4", "kivi2")
    ]
    assert whole >= sizes[0]
    assert sizes[1] >= sizes[2]
    assert all(size <= whole for size in sizes)


# Prices


@st.composite
def steps(draw: st.DrawFn) -> tuple[int, int, int, int]:
    return (
        draw(st.integers(0, 300)),
        draw(st.integers(1, 8000)),
        draw(st.integers(0, 5000)),
        draw(st.integers(0, 20_000)),
    )


@pytest.mark.parametrize("name", COSTS)
@settings(max_examples=15, deadline=None)
@given(sizes=steps(), more=st.integers(1, 300))
def test_longer_with_more_tokens_and_the_accounts_are_the_step(
    name: str, sizes: tuple[int, int, int, int], more: int
) -> None:
    cost = COSTS[name]
    caps = cost.shard.model.clip_tokens
    seqs, context, tokens, start = sizes

    def step(added: int) -> StepShape:
        parts = [decode_shape(seqs, context + (0 if tokens else added), caps)]
        if tokens:
            parts.append(chunk_shape(start, tokens + added, caps))
        return joined(parts)

    shape = step(0)
    gpu_ns = cost.price(shape).gpu_ns
    assert cost.price(step(more)).gpu_ns >= 0.999 * gpu_ns
    split = cost.split(columns_of(shape, caps))
    total = sum(float(found[0]) for found in split.values())
    assert total * 1e9 == pytest.approx(gpu_ns, abs=20)
    if seqs and not tokens:
        run = cost.price_decodes(shape, 5)
        found = [after - before for before, after in pairwise((0, *run.gpu_cumulative_ns))]
        assert found[0] == gpu_ns
        if not caps:
            assert found == [cost.price(grown(shape, i)).gpu_ns for i in range(5)]


def test_weights_alone_gain_below_a_crossover_and_lose_above() -> None:
    """AWQ on A100: a third of the time of small decodes, more than 16 bits take for a prompt."""
    rows = precision_rows(COSTS["awq"].kernels, COSTS["awq"].graph_sizes, 8)
    crossover = rows[0].crossover_rows
    assert crossover is not None
    assert 40 < crossover < 153
    assert rows[0].unit == "bf16_flop_per_s"
    few, many = decode_shape(4, 500), decode_shape(2 * crossover, 20)
    assert seconds("awq", few) < 0.45 * seconds("bf16", few)
    assert seconds("awq", many) > seconds("bf16", many)
    chunk = chunk_shape(0, 4096)
    # 0.60 to 0.73 as fast as 16-bit GEMMs from 256 rows on (vLLM PR 2497).
    assert 1.3 < seconds("awq", chunk) / seconds("bf16", chunk) < 1.7
    unpack_s = precision_rows(COSTS["awq"].kernels, COSTS["awq"].graph_sizes, 4096)[0].unpack_s
    assert unpack_s is not None
    assert 0 < unpack_s < seconds("awq", chunk) - seconds("bf16", chunk)


def test_narrow_units_gain_at_every_size() -> None:
    for shape in (decode_shape(4, 500), decode_shape(256, 20), chunk_shape(0, 4096)):
        for name in ("w8a8_int8", "w4a8kv4", "w4a4"):
            assert seconds(name, shape) < seconds("bf16", shape)
    # 4-bit products are fast, the transforms before them are not free.
    rows = precision_rows(COSTS["w4a4"].kernels, COSTS["w4a4"].graph_sizes, 4096)
    assert rows[0].unit == "int4_op_per_s"
    assert rows[0].unpack_s is not None
    assert rows[0].unpack_s > 0
    assert seconds("w4a4", chunk_shape(0, 4096)) < seconds("w8a8_int8", chunk_shape(0, 4096))


def test_narrow_caches_may_wait_for_the_cores_that_unpack_them() -> None:
    """QServe: 4-bit attention on A100 is bound by instructions, not by the bytes it saves."""
    long = decode_shape(64, 4000)
    cost = COSTS["w4a8kv4"]
    assert cost.kernels.cores_bind_decode
    row = next(row for row in cost.describe(long) if row.name == "decode_attention")
    assert row.bound == "compute"
    bytes_s = row.state_bytes / (A100.hbm_bytes_per_s * cost.efficiency.attention_memory)
    assert row.seconds > 2 * bytes_s
    assert not COSTS["bf16"].kernels.cores_bind_decode


def test_evidence_is_that_of_the_weakest_part() -> None:
    h100 = {name: compiled(name, gpu="h100").evidence() for name in ("awq", "fp8")}
    assert h100["awq"]["prefill_compute"] == "assumed"
    assert h100["fp8"]["prefill_compute"] == "extrapolated"
    named = [str(source["what"]) for source in COSTS["awq"].sources()]
    assert "W4A16 instructions to unpack a weight" in named
    assert COSTS["w4a8kv4"].evidence()["decode_state_reads"] in ("reported", "assumed")


# What a device or a model lacks


@pytest.mark.parametrize(
    ("name", "gpu", "stored", "note"),
    [
        ("fp8", "h100", "fp8", ""),
        ("fp8", "a100", "w8a16", "A100-SXM-80GB has no fp8 unit"),
        ("fp8_per_block", "a100", "w8a16", "has no fp8 unit"),
        ("modelopt_fp4", "b200", "nvfp4", ""),
        ("modelopt_fp4", "h100", "nvfp4_w4a16", "H100-SXM has no fp4 unit: modelopt_fp4 is 4-bit"),
        ("mxfp4", "h100", "mxfp4", "what unpacking mxfp4 weights takes is not known"),
        ("awq", "mi300x", "int4_g128", "what unpacking costs on MI300X is not known"),
        ("w8a8_int8", "h100", "int8", "no option of vLLM"),
        ("w4a8kv4", "l40s", "w4a8_g128", "keys and values are int4: a part of w4a8kv4"),
    ],
)
def test_a_fall_back_is_stated(name: str, gpu: str, stored: str, note: str) -> None:
    served = quantize(LLAMA, load_gpu(gpu), weights=name)
    assert served.model.precision.attention == stored
    assert (note in " ".join(served.notes)) if note else not served.notes
    device = load_gpu(gpu)
    cost = compile_step_cost(
        served.model, device, StepOptions(max_num_batched_tokens=2048, max_num_seqs=8)
    )
    assert cost.price(decode_shape(1, 100)).gpu_ns > 0


@pytest.mark.parametrize(
    ("engine", "kv", "model", "gpu", "reason"),
    [
        ({"quantization": "w4a4"}, {}, "llama-3.1-8b", "H100", "no known int4 unit"),
        ({"quantization": "w4a4"}, {}, "qwen3-30b-a3b", "A100", "has experts; others: fp8"),
        (
            {"quantization": "w4a8kv4"},
            {"cache_dtype": "fp8"},
            "llama-3.1-8b",
            "A100",
            "an int4 cache of its own",
        ),
        ({}, {"cache_dtype": "kivi2"}, "deepseek-v3", "H200", "no kernels of latent attention"),
        ({}, {"cache_dtype": "fp8_ds_mla"}, "llama-3.1-8b", "H100", "is of latent attention"),
    ],
)
def test_what_cannot_be_is_refused(
    engine: dict[str, Any], kv: dict[str, Any], model: str, gpu: str, reason: str
) -> None:
    with pytest.raises(ScenarioError, match=reason):
        build(scenario(model=model, hardware={"gpu": gpu}, engine=engine, kv=kv))


def test_scenarios_run_with_them() -> None:
    plain = simulate(scenario())
    results = {
        name: simulate(scenario(**sections))
        for name, sections in {
            "awq": {"engine": {"quantization": "awq"}},
            "kivi2": {"kv": {"cache_dtype": "kivi2"}},
            "w4a8kv4": {"engine": {"quantization": "w4a8kv4"}},
        }.items()
    }
    tpot_s = {name: result.figure("tpot", "p50") for name, result in results.items()}
    slow_s = plain.figure("tpot", "p50")
    assert slow_s is not None
    assert tpot_s["awq"] is not None
    assert tpot_s["awq"] < 0.6 * slow_s
    memory = {name: result.build.replica.memory for name, result in results.items()}
    blocks = {name: plan.blocks.num_gpu_blocks for name, plan in memory.items()}
    fewest = plain.build.replica.memory.blocks.num_gpu_blocks
    assert blocks["kivi2"] > 5 * fewest
    assert blocks["w4a8kv4"] > 3.5 * fewest
    notes = " ".join(results["kivi2"].build.notes)
    assert "kivi2 is no option of vLLM" in notes
