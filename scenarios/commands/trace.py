"""``fleetcast trace``: what a recorded workload looks like."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scenarios.commands.app import open_in_browser, print_json
from scenarios.commands.options import OutputFormat

trace_app = typer.Typer(
    help="Look into recorded workloads.", no_args_is_help=True, rich_markup_mode=None
)


@trace_app.callback()
def _group() -> None:
    """Look into recorded workloads."""


@trace_app.command("inspect")
def inspect_trace(
    file: Annotated[Path, typer.Argument(help="Trace file, gzipped or not.")],
    trace_format: Annotated[
        str | None, typer.Option(help="Its format. Default: recognised from the content.")
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="Columns of your own: arrival=time,input=prompt_tokens,output=..."),
    ] = None,
    subset: Annotated[
        str | None, typer.Option(help="Which service's clients, where a file holds several.")
    ] = None,
    block_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens a prefix id stands for. Default: the format's."),
    ] = None,
    skip_bad_rows: Annotated[
        bool, typer.Option("--skip-bad-rows", help="Count malformed rows instead of stopping.")
    ] = False,
    spread_ticks: Annotated[
        bool, typer.Option(help="Spread arrivals inside the ticks of a coarse clock.")
    ] = True,
    sessions_per_hour: Annotated[
        float | None,
        typer.Option(help="Start sessions without a common clock at this rate, as Poisson does."),
    ] = None,
    duration: Annotated[
        float | None, typer.Option(min=1e-9, help="How long they start, s. Default: 10800.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of these starts.")] = 0,
    window: Annotated[
        tuple[float, float] | None,
        typer.Option(help="Look only at arrivals from START to END, s.", metavar="START END"),
    ] = None,
    warmup: Annotated[
        float, typer.Option(help="Count cache hits from here on, s; before, it only fills.")
    ] = 0.0,
    model: Annotated[
        str | None, typer.Option(help="Model whose KV cache is sized; a name or a config.json.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="HTML page to write: a file, or a folder for trace.html.")
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    output_format: OutputFormat = "text",
) -> None:
    """Describe a trace: arrivals, lengths, sessions, and what a prefix cache finds in it."""
    from scenarios.inspection.trace_facts import kv_cache_facts, read_trace, trace_facts

    recording = read_trace(
        file,
        trace_format=trace_format,
        columns=columns,
        subset=subset,
        block_tokens=block_tokens,
        skip_bad_rows=skip_bad_rows,
        spread_ticks=spread_ticks,
        sessions_per_h=sessions_per_hour,
        duration_s=duration,
        seed=seed,
        window_s=window,
    )
    kv_cache = None if model is None else kv_cache_facts(model)
    facts = trace_facts(recording, file=file.name, kv_cache=kv_cache, warmup_s=warmup)
    page = None
    # before printing, because a reader that closes the pipe (``| head``) ends the run
    if out is not None or open_page:
        from reports.trace.report import write_trace_page

        page = write_trace_page(facts, out or Path(f"{file.name.partition('.')[0]}.html"))
    if output_format == "json":
        print_json(facts)
    else:
        from reports.terminal import print_report
        from reports.trace.report import trace_report

        print_report(trace_report(facts))
        if page is not None:
            print(f"page in {page}")
    if open_page and page is not None:
        open_in_browser(page)
