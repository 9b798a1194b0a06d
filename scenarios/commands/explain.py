"""``fleetcast explain``: what one engine step costs, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.commands.app import open_in_browser, print_json
from scenarios.commands.options import (
    Flags,
    KvDtype,
    OpenPage,
    OutputFormat,
    Override,
    Quantization,
    ScenarioFile,
    check_open,
    takes_flags,
)


@takes_flags("model gpu tp pp dp enable_expert_parallel all2all_backend")
def explain(
    scenario: ScenarioFile = None,
    *,
    flags: Flags,
    quantization: Quantization = None,
    kv_dtype: KvDtype = None,
    decode_seqs: Annotated[int | None, typer.Option(help="Sequences that decode a token.")] = None,
    context: Annotated[int, typer.Option(help="Tokens of context of each of them.")] = 2000,
    prefill_tokens: Annotated[int, typer.Option(help="New tokens of one prompt's chunk.")] = 0,
    prefill_context: Annotated[int, typer.Option(help="Cached tokens before that chunk.")] = 0,
    override: Override = None,
    out: Annotated[Path | None, typer.Option(help="HTML page with a roofline plot.")] = None,
    open_page: OpenPage = False,
    output_format: OutputFormat = "text",
) -> None:
    """Explain one engine step: each operator's FLOPs, bytes and time, and what binds it."""
    from scenarios.build.resolve import resolve
    from scenarios.files.flags import scenario_from_flags
    from scenarios.inspection.explain import explain_facts

    check_open(open_page, out)
    if decode_seqs is None:
        decode_seqs = 0 if prefill_tokens else 64
    given = scenario_from_flags(scenario, flags, override or [], simulated=False)
    facts = explain_facts(
        resolve(given, quantization=quantization, kv_dtype=kv_dtype),
        decode_seqs=decode_seqs,
        context=context,
        prefill_tokens=prefill_tokens,
        prefill_context=prefill_context,
    )
    # before printing, because a reader that closes the pipe (``| head``) ends the run
    if out is not None:
        from reports.explain.report import write_explain_page

        write_explain_page(facts, out)
    if output_format == "json":
        print_json(facts)
    else:
        from reports.explain.report import explain_report
        from reports.terminal import print_report

        print_report(explain_report(facts))
        if out is not None:
            print(f"page in {out}")
    if open_page and out is not None:
        open_in_browser(out)
