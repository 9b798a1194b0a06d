"""``fleetcast list`` and ``fleetcast schema``: what a scenario can say."""

from __future__ import annotations

from typing import Annotated

import typer


def list_names(
    what: Annotated[
        str,
        typer.Argument(help="models, gpus, policies, presets, formats (of traces) or profiles."),
    ],
) -> None:
    """List what a scenario can name."""
    from scenarios.commands import print_names

    print_names(what)


def schema() -> None:
    """Print the JSON Schema of scenario files, for editors and generators."""
    from scenarios.commands import print_schema

    print_schema()
