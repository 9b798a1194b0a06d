"""``fleetcast memory``: what fills a device."""

from __future__ import annotations

from typing import Annotated

import typer

from scenarios.commands.options import (
    Flags,
    KvDtype,
    OutputFormat,
    Override,
    Quantization,
    ScenarioFile,
    takes_flags,
)


@takes_flags("model gpu tp pp dp enable_expert_parallel all2all_backend")
def memory(
    scenario: ScenarioFile = None,
    *,
    flags: Flags,
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
    from scenarios.build.model_server import read_served
    from scenarios.inspection.memory_command import run_memory

    found = read_served(
        scenario, flags, override or [], quantization=quantization, kv_dtype=kv_dtype
    )
    run_memory(found, context=context, output=output, as_json=output_format == "json")
