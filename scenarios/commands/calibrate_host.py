"""``fleetcast calibrate host``: how fast a machine runs an engine's host work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from scenarios.commands.app import check_format, print_json
from scenarios.commands.options import OutputFormat


def calibrate_host(
    device: Annotated[
        str, typer.Option(help="cuda, or cpu: Python alone, without launches.")
    ] = "cuda",
    seconds: Annotated[
        float, typer.Option(min=0.1, max=600, help="How long to probe: hosts drift.")
    ] = 20.0,
    out: Annotated[Path | None, typer.Option(help="The host's file (.yaml) to write.")] = None,
    output_format: OutputFormat = "text",
) -> None:
    """Probe this machine's Python and kernel launches, and compare it with the named hosts."""
    from scenarios.calibration.host import host_facts

    if device not in ("cuda", "cpu"):
        raise typer.BadParameter(f"{device!r} is neither cuda nor cpu", param_hint="--device")
    if out is not None and out.suffix not in (".yaml", ".yml"):
        raise typer.BadParameter(f"{out} must end in .yaml", param_hint="--out")
    check_format(output_format)
    facts = host_facts(seconds, device=device, out=out)
    if output_format == "json":
        print_json(facts)
    else:
        _print(facts)


def _print(facts: dict[str, Any]) -> None:
    typer.echo(f"{'host':14} {'Python call':>12} {'launch':>9} {'host times':>11}  what")
    for host in facts["hosts"]:
        typer.echo(
            f"{host['name']:14} {1e9 * host['python_call_s']:9.1f} ns "
            f"{1e6 * host['launch_s']:6.2f} us {host['factor']:10.2f}x  "
            f"{host['what']} ({host['label']})"
        )
    typer.echo(f"{facts['rounds']} rounds; the slowest took {facts['drift']:.2f} times the fastest")
    if not facts["is_steady"]:
        typer.echo(
            "this machine is not steady: its cores are shared, or change their clock; steps that "
            "the host binds vary as much"
        )
    if facts["out"] is not None:
        typer.echo(f"written to {facts['out']}; use it with --set engine.host={facts['out']}")
