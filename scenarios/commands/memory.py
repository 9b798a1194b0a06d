"""``fleetcast memory``: what fills a device."""

from __future__ import annotations

from typing import Annotated

import typer

from scenarios.commands.app import print_json
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
    from scenarios.build.resolve import resolve
    from scenarios.files.flags import scenario_from_flags
    from scenarios.inspection.memory import memory_facts

    given = scenario_from_flags(scenario, flags, override or [], simulated=False)
    facts = memory_facts(
        resolve(given, quantization=quantization, kv_dtype=kv_dtype),
        context=context,
        output=output,
    )
    if output_format == "json":
        print_json(facts)
        return
    from reports.memory import memory_report
    from reports.terminal import print_report

    print_report(memory_report(facts))
