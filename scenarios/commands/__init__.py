"""The console script: commands in the order of ``--help``."""

from __future__ import annotations

import os
import sys

from scenarios.commands.app import app
from scenarios.commands.calibrate import calibrate_app
from scenarios.commands.calibrate_host import calibrate_host
from scenarios.commands.calibrate_server import calibrate_observe, calibrate_vllm
from scenarios.commands.capacity import capacity
from scenarios.commands.compare import compare
from scenarios.commands.diagnose import diagnose
from scenarios.commands.explain import explain
from scenarios.commands.export import export_app
from scenarios.commands.memory import memory
from scenarios.commands.names import list_names, schema
from scenarios.commands.options import runs_policies
from scenarios.commands.plan import plan
from scenarios.commands.report import report
from scenarios.commands.scenario import scenario_app
from scenarios.commands.simulate import simulate
from scenarios.commands.sweep import sweep
from scenarios.commands.trace import trace_app
from scenarios.commands.validate import validate
from scenarios.commands.whatif import whatif

__all__ = ["app", "main"]

app.command()(runs_policies(simulate))
app.command()(runs_policies(whatif))
app.command()(runs_policies(capacity))
app.command()(runs_policies(sweep))
app.command()(runs_policies(plan))
app.command()(report)
app.command()(runs_policies(explain))
app.command()(runs_policies(memory))
app.add_typer(export_app, name="export")
app.command()(diagnose)
app.command()(validate)
app.command()(compare)
calibrate_app.command("host")(calibrate_host)
calibrate_app.command("vllm")(calibrate_vllm)
calibrate_app.command("observe")(calibrate_observe)
app.add_typer(calibrate_app, name="calibrate")
app.add_typer(scenario_app, name="scenario")
app.add_typer(trace_app, name="trace")
app.command("list")(list_names)
app.command()(schema)


def main() -> None:
    """Run the command line; the entry point of the console script."""
    # Searching every installed distribution for pydantic plugins takes 50 ms.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        app()
    finally:
        _flush_stdout()


def _flush_stdout() -> None:
    """Write what is left; a reader that closed the pipe (``| head -1``) is not an error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter would flush again on exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
