"""``fleetcast explain``: what one engine step costs, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.commands.app import check_format, open_in_browser
from scenarios.commands.options import (
    All2AllBackend,
    DataParallel,
    ExpertParallel,
    Gpu,
    KvDtype,
    Model,
    OpenPage,
    OutputFormat,
    Override,
    PipelineParallel,
    Quantization,
    ScenarioFile,
    TensorParallel,
    check_open,
)


def explain(
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
    from scenarios.inspection.explain_command import run_explain

    check_format(output_format)
    check_open(open_page, out)
    if decode_seqs is None:
        decode_seqs = 0 if prefill_tokens else 64
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
    run_explain(
        replica,
        decode_seqs=decode_seqs,
        context=context,
        prefill_tokens=prefill_tokens,
        prefill_context=prefill_context,
        out=out,
        as_json=output_format == "json",
    )
    if open_page and out is not None:
        open_in_browser(out)
