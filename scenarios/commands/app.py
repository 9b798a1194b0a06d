"""The command line. It starts fast because each command imports what it needs when it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

EXIT_BAD_INPUT = 2
EXIT_SLO_MISSED = 3
EXIT_BEYOND_TOLERANCE = 4
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count
EXIT_TERMINATED = 143  # 128 + SIGTERM


class _Commands(TyperGroup):
    """Commands that turn users' errors into one message and an exit code; a traceback is our
    bug."""

    def invoke(self, ctx: Any) -> Any:
        from sim.errors import FleetcastError, printable

        try:
            return super().invoke(ctx)
        except FleetcastError as error:
            typer.echo(f"error: {printable(str(error))}", err=True)
            raise typer.Exit(EXIT_BAD_INPUT) from None
        except BrokenPipeError:
            raise  # a reader that has gone; `main` ends in silence
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            typer.echo(f"error: {where}{error.strerror or error}", err=True)
            raise typer.Exit(EXIT_BAD_INPUT) from None
        except (MemoryError, RecursionError) as error:
            told = (
                "more memory than there is" if isinstance(error, MemoryError) else "deeper nesting"
            )
            typer.echo(f"error: an input asks for {told}; is it damaged?", err=True)
            raise typer.Exit(EXIT_BAD_INPUT) from None
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from None


app = typer.Typer(
    cls=_Commands,
    name="fleetcast",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help takes half the time
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from sim import __version__

        typer.echo(f"fleetcast {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Forecast what an LLM serving fleet will do: TTFT, TPOT, goodput, and why."""


def open_in_browser(page: Path) -> None:
    """Show a page in the user's browser, if there is one; the path was printed before."""
    import contextlib
    import webbrowser

    with contextlib.suppress(webbrowser.Error, OSError):
        webbrowser.open(page.resolve().as_uri())


def check_format(output_format: str) -> str:
    """Return ``--format``. Raises `BadParameter` unless it is one that every command knows."""
    if output_format not in ("text", "json"):
        raise typer.BadParameter(
            f"{output_format!r} is neither text nor json", param_hint="--format"
        )
    return output_format


def print_json(content: Any) -> None:
    """Print what a command found as indented JSON."""
    print(json.dumps(content, indent=1, allow_nan=False))
