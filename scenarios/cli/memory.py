"""``fleetcast memory``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.cli.app import check_format


def memory(
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
    context: Annotated[
        int | None, typer.Option(help="Prompt tokens of a sequence. Default: 8192.")
    ] = None,
    output: Annotated[int, typer.Option(help="Tokens that a sequence generates.")] = 512,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="Any field: section.key=value.")
    ] = None,
    output_format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
) -> None:
    """Account for every byte of a device, and say how many sequences of what length fit."""
    from scenarios.memory_command.command import run_memory
    from scenarios.served import read_served

    check_format(output_format)
    flags = {"--model": model, "--gpu": gpu, "--tp": tp}
    found = read_served(
        scenario, flags, override or [], quantization=quantization, kv_dtype=kv_dtype
    )
    run_memory(found, context=context, output=output, as_json=output_format == "json")
