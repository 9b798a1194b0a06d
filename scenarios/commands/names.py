"""``fleetcast list`` and ``fleetcast schema``: the names and fields of scenarios."""

from __future__ import annotations

from typing import Annotated

import typer

from scenarios.commands.app import check_format


def list_names(
    what: Annotated[
        str,
        typer.Argument(
            help="models, gpus, policies, presets, quantization, formats, profiles, drafters."
        ),
    ],
    output_format: Annotated[
        str, typer.Option("--format", help="text, or for models json.")
    ] = "text",
) -> None:
    """List what a scenario can name."""
    from scenarios.commands.listing import print_models_json, print_names

    check_format(output_format)
    if output_format == "text":
        print_names(what)
    elif what == "models":
        print_models_json()
    else:
        raise typer.BadParameter("json is for models", param_hint="--format")


def schema(
    what: Annotated[str, typer.Argument(help="scenario or plan: which file.")] = "scenario",
) -> None:
    """Print the JSON Schema of scenario files, or of plans, for editors and generators."""
    from scenarios.commands.listing import print_schema

    print_schema(what)
