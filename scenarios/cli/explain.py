"""``fleetcast explain``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.cli.app import check_format, open_in_browser


def explain(
    scenario: Annotated[
        Path | None, typer.Argument(help="Scenario YAML; or say it with the options below.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model id (see `list models`) or a config.json.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU (see `list gpus`).")] = None,
    tp: Annotated[int | None, typer.Option(help="Tensor-parallel size.")] = None,
    quantization: Annotated[
        str | None, typer.Option(help="Format of the layers' matrices: fp8, int4_g128, nvfp4 ...")
    ] = None,
    kv_dtype: Annotated[
        str | None, typer.Option("--kv-dtype", help="Format of the KV cache: fp8, kv_int4 ...")
    ] = None,
    decode_seqs: Annotated[int | None, typer.Option(help="Sequences that decode a token.")] = None,
    context: Annotated[int, typer.Option(help="Tokens of context of each of them.")] = 2000,
    prefill_tokens: Annotated[int, typer.Option(help="New tokens of one prompt's chunk.")] = 0,
    prefill_context: Annotated[int, typer.Option(help="Cached tokens before that chunk.")] = 0,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="Any field: section.key=value.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="HTML page with a roofline plot.")] = None,
    open_page: Annotated[
        bool, typer.Option("--open", help="Show the page in a browser; needs --out.")
    ] = False,
    output_format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
) -> None:
    """Explain one engine step: each operator's FLOPs, bytes and time, and what binds it."""
    from scenarios.explain_step.command import run_explain
    from scenarios.served import read_served

    check_format(output_format)
    if open_page and out is None:
        raise typer.BadParameter("there is no page to open without --out", param_hint="--open")
    if decode_seqs is None:
        decode_seqs = 0 if prefill_tokens else 64
    flags = {"--model": model, "--gpu": gpu, "--tp": tp}
    found = read_served(
        scenario, flags, override or [], quantization=quantization, kv_dtype=kv_dtype
    )
    run_explain(
        found,
        decode_seqs=decode_seqs,
        context=context,
        prefill_tokens=prefill_tokens,
        prefill_context=prefill_context,
        out=out,
        as_json=output_format == "json",
    )
    if open_page and out is not None:
        open_in_browser(out)
