"""A scenario's replica: what every command starts from, worked out as far as it is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from scenarios.build import replica as replica_file
from scenarios.build.builder import build
from scenarios.build.resolve import resolve
from scenarios.files.load import parse_scenario
from sim.errors import ScenarioError
from tests.properties.scenarios import replica_of, small

LIMITS = {"max_num_batched_tokens": 1024, "max_num_seqs": 64}


def test_memory_compiles_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("a step cost was compiled")

    for function in ("load_operators", "compile_layout_cost", "compile_speculative_cost"):
        monkeypatch.setattr(replica_file, function, refuse)
    replica = replica_of("llama-3.1-8b", "h200", engine={"speculative": {"method": "eagle"}})
    assert replica.memory.blocks.num_gpu_blocks > 1000
    assert replica.memory.draft_weight_bytes > 0


def test_a_step_without_drafts_needs_no_drafter() -> None:
    """Speculation beside recurrent layers is refused, but only where something is drafted."""
    engine = {"speculative": {"method": "eagle"}, **LIMITS}
    replica = replica_of("kimi-linear-48b-a3b", "h200", engine=engine)
    assert replica.plain_cost().evidence()
    with pytest.raises(ScenarioError, match="recurrent layers"):
        _ = replica.cost


def test_limits_are_a_ranks_and_an_engines_are_their_sums() -> None:
    sizes = {"data_parallel_size": 2, "pipeline_parallel_size": 2}
    values = small() | {"model": "qwen3-30b-a3b", "engine": {**sizes, **LIMITS}}
    built = build(parse_scenario(values))
    replica, engine = built.replica, built.pool.engine
    assert (replica.max_num_batched_tokens, replica.max_num_seqs) == (1024, 64)
    assert (engine.step_token_limit, engine.running_seq_limit) == (4 * 1024, 2 * 64)
    assert engine.replica_blocks == 2 * (replica.memory.blocks.num_gpu_blocks - 1) + 1


def test_bare_formats_and_methods_replace_the_scenarios() -> None:
    scenario = parse_scenario(small() | {"engine": {"quantization": "awq"}})
    given = resolve(scenario)
    bare = resolve(scenario, quantization="int8", kv_dtype="fp8")
    method = resolve(scenario, quantization="gptq")
    assert (given.methods, bare.methods, method.methods) == (
        ("awq", None),
        (None, None),
        ("gptq", None),
    )
    assert (bare.model.linear_dtype, bare.model.kv_cache_dtype) == ("int8", "fp8")
