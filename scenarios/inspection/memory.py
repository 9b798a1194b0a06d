"""What fills a device, and how many sequences fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from costmodels.hardware.gpus import GIB
from costmodels.memory.device import DevicePlan
from costmodels.memory.fitting import reserve, smallest_layouts
from scenarios.build.replica import Replica
from sim.errors import ScenarioError
from sim.kv.layout import PLAIN

_SHORTEST = 1024
_CONTEXT = 8192


def memory_facts(replica: Replica, *, context: int | None, output: int) -> dict[str, Any]:
    """Return the account of one rank's device, sequences by length, and layouts that hold the
    model.

    ``context`` is the prompt tokens of a sequence (None: 8,192, or what the model has positions
    for), ``output`` the tokens it generates. Raises `ScenarioError` for lengths that are not
    positive, or that exceed the model's positions.
    """
    longest = replica.max_model_len
    if context is None:
        context = max(1, min(_CONTEXT, longest - output))
    if context < 1 or output < 1:
        raise ScenarioError(f"--context {context} and --output {output} must be at least 1 token")
    if context + output > longest:
        raise ScenarioError(
            f"--context {context:,} and --output {output:,} are more than max_model_len "
            f"{longest:,} of {replica.model.name}"
        )
    plan = replica.memory
    entries = plan.entries(context, output)
    # Blocks that were given are of this layout alone.
    layouts = smallest_layouts(replace(plan, num_gpu_blocks=None), context, output)
    return {
        **replica.facts(),
        "total_params": replica.model.total_params,
        "active_params": replica.model.active_params,
        "gpu_memory_utilization": plan.gpu_memory_utilization,
        "block_size": plan.block[0],
        "max_model_len": longest,
        "context": context,
        "output": output,
        "device_bytes": replica.gpu.hbm_bytes,
        "entries": [entry._asdict() for entry in entries],
        "weight_bytes": plan.weight_bytes,
        "workspace_bytes": plan.workspace_bytes,
        "pool_bytes": plan.pool_bytes,
        "beside_bytes": plan.beside_bytes(context, output),
        "missing_bytes": plan.missing_bytes,
        "sequence_bytes": plan.used_bytes(context, output),
        "fragmentation_bytes_per_sequence": plan.fragmentation_bytes(context, output),
        "growing_state_bytes_per_token": float(
            sum(state.endless * count for state, count in plan.rank.states) * plan.state_share
        ),
        "fixed_state_bytes_per_sequence": round(
            sum(state.largest_fixed * count for state, count in plan.rank.states)
        ),
        "schemes": [row._asdict() for row in reserve(plan, context, output, longest)],
        "lengths": [_length(plan, size, output, longest) for size in _lengths(context, longest)],
        "layouts": [layout._asdict() for layout in layouts],
        "startup_log": _beside_log(replica),
        "evidence": replica.gpu.source_of("hbm_bytes"),
    }


def _beside_log(replica: Replica) -> list[dict[str, Any]]:
    """Return what the server's start-up log said, beside the plan's own figures (None: it has
    none), which leave out the blocks taken from the log."""
    said = replica.scenario.kv.startup_log
    if said is None:
        return []
    plan = replace(replica.memory, num_gpu_blocks=None)
    profiled = [said.activation_gib, said.other_gib]
    rows = [_row("weights", "GiB", said.weights_gib, plan.weight_bytes / GIB)]
    if None not in profiled:
        rows.append(
            _row(
                "activations and what is outside torch",
                "GiB",
                sum(filter(None, profiled)),
                plan.workspace_bytes / GIB,
            )
        )
    tokens = None if plan.missing_bytes else kv_tokens(plan, replica.max_model_len)
    pool_gib = None if plan.missing_bytes else plan.pool_bytes / GIB
    is_plain = tokens is None or plan.blocks.layout == PLAIN
    rows += [
        _row("captured CUDA graphs", "GiB", said.graphs_gib, None),
        _row("KV cache", "GiB", said.kv_cache_gib, pool_gib),
        # Of layers with caches of several sizes, versions count tokens in different ways.
        *([_row("KV cache", "tokens", said.kv_cache_tokens, tokens)] if is_plain else []),
        _row(
            f"requests of {replica.max_model_len:,} tokens at once",
            "",
            said.max_concurrency,
            None if tokens is None else tokens / replica.max_model_len,
        ),
    ]
    return [row for row in rows if row["log"] is not None]


def _row(what: str, unit: str, said: float | None, ours: float | None) -> dict[str, Any]:
    return {"what": what, "unit": unit, "log": said, "predicted": ours}


def kv_tokens(plan: DevicePlan, max_model_len: int) -> int:
    """Return the size of the KV cache in tokens, as vLLM's start-up log counts them: those of
    requests of ``max_model_len`` tokens, where some layers keep fewer than all."""
    blocks = plan.blocks
    context_ranks = plan.layout.decode_context_parallel_size
    if blocks.layout == PLAIN:
        return blocks.num_gpu_blocks * blocks.block_size * context_ranks
    pages = blocks.layout.pages(max_model_len, blocks.block_size)
    return int(blocks.num_gpu_blocks / pages * max_model_len)


def _lengths(context: int, longest: int) -> list[int]:
    """Return prompt lengths by powers of four, and the requested one."""
    found = {context}
    length = _SHORTEST
    while length < longest:
        found.add(length)
        length *= 4
    return sorted(found)


def _length(plan: DevicePlan, context: int, output: int, longest: int) -> dict[str, Any]:
    output = max(1, min(output, longest - context))
    rows = reserve(plan, context, output, longest)
    return {
        "context": context,
        "output": output,
        "sequence_bytes": plan.used_bytes(context, output),
        "sequences": {row.scheme: row.sequences for row in rows},
        "paged_mean_sequences": rows[-1].mean_sequences,
        "paged_used": rows[-1].used,
    }
