"""``fleetcast memory``: what fills a device."""

from __future__ import annotations

from typing import Annotated

import typer

from scenarios.commands.app import check_format
from scenarios.commands.options import (
    All2AllBackend,
    DataParallel,
    ExpertParallel,
    Gpu,
    KvDtype,
    Model,
    OutputFormat,
    Override,
    PipelineParallel,
    Quantization,
    ScenarioFile,
    TensorParallel,
)


def memory(
    scenario: ScenarioFile = None,
    model: Model = None,
    gpu: Gpu = None,
    tp: TensorParallel = None,
    pp: PipelineParallel = None,
    dp: DataParallel = None,
    enable_expert_parallel: ExpertParallel = None,
    all2all_backend: All2AllBackend = None,
    quantization: Quantization = None,
    kv_dtype: KvDtype = None,
    context: Annotated[
        int | None, typer.Option(help="Prompt tokens of a sequence. Default: 8192.")
    ] = None,
    output: Annotated[int, typer.Option(help="Tokens that a sequence generates.")] = 512,
    override: Override = None,
    output_format: OutputFormat = "text",
) -> None:
    """Account for every byte of a device, and show how many sequences fit, by their length."""
    from scenarios.build.resolve import resolve
    from scenarios.files.flags import scenario_from_flags
    from scenarios.inspection.memory_command import run_memory

    check_format(output_format)
    flags = {
        "--model": model,
        "--gpu": gpu,
        "--tp": tp,
        "--pp": pp,
        "--dp": dp,
        "--enable-expert-parallel": enable_expert_parallel,
        "--all2all-backend": all2all_backend,
    }
    given = scenario_from_flags(scenario, flags, override or [], simulated=False)
    replica = resolve(given, quantization=quantization, kv_dtype=kv_dtype)
    run_memory(replica, context=context, output=output, as_json=output_format == "json")
