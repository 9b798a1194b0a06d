"""``fleetcast calibrate vllm`` and ``observe``: measure your own engine or server, and fit it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from scenarios.commands.app import print_json
from scenarios.commands.options import Flags, OutputFormat, Override, takes_flags


def calibrate_vllm(
    model: Annotated[
        str, typer.Option(help="What vLLM serves: an id, a checkpoint's folder or a config.json.")
    ],
    folder: Annotated[Path, typer.Option(help="Folder of the measurements.")],
    out: Annotated[Path, typer.Option(help="The calibration file to write.")],
    grid: Annotated[str, typer.Option(help="Steps to measure: compact or full.")] = "compact",
    random_weights: Annotated[
        bool,
        typer.Option(
            "--random-weights",
            help="Load no checkpoint. Experts are then not routed to as by trained weights.",
        ),
    ] = False,
    engine_args: Annotated[str, typer.Option(help="Fields of vLLM's EngineArgs, as JSON.")] = "{}",
    serve_s: Annotated[float, typer.Option(help="Seconds of each serving run; 0: none.")] = 30.0,
    budget_s: Annotated[float, typer.Option(help="Seconds to end the measurement in.")] = 1e9,
    key: Annotated[str, typer.Option(help="Name of the files: KEY_info.json ...")] = "engine",
    measured: Annotated[
        bool, typer.Option("--measured", help="Measure nothing: the folder has it already.")
    ] = False,
    machine: Annotated[str, typer.Option(help="What the host is, for the record.")] = "not named",
    base: Annotated[str, typer.Option(help="Profile to start from.")] = "vllm-0.25",
    output_format: OutputFormat = "text",
) -> None:
    """Measure the steps of vLLM's engine core on this machine, and fit a calibration to them."""
    from calibrate.engines.cli import measure_vllm, parse_engine_args
    from calibrate.engines.grid import GRIDS
    from scenarios.calibration.measured import fit_measured

    if grid not in GRIDS:
        raise typer.BadParameter(f"{grid!r} is neither of {', '.join(GRIDS)}", param_hint="--grid")
    if not measured:
        measure_vllm(
            model,
            folder,
            key=key,
            grid=grid,
            random_weights=random_weights,
            engine_args=parse_engine_args(engine_args),
            window_s=serve_s,
            budget_s=budget_s,
        )
    _print_fit(fit_measured(folder, key, out, machine=machine, base=base), output_format)


@takes_flags("model gpu tp pp dp enable_expert_parallel all2all_backend")
def calibrate_observe(
    scenario: Annotated[
        Path | None, typer.Option(help="Scenario of the server; or describe it below.")
    ] = None,
    *,
    flags: Flags,
    url: Annotated[
        str | None, typer.Option(help="The server's root: http://localhost:8000.")
    ] = None,
    served_model_name: Annotated[
        str | None, typer.Option(help="The model's name there. Default: --model.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The calibration file to write. Default: none is fitted.")
    ] = None,
    seen: Annotated[
        Path, typer.Option(help="File of what is seen; without --url it is read instead.")
    ] = Path("observation.json"),
    max_concurrency: Annotated[int, typer.Option(help="Most clients at once.")] = 128,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what is sent.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Send without asking.")] = False,
    seed: Annotated[int, typer.Option(help="Of the prompts and arrivals.")] = 0,
    override: Override = None,
    output_format: OutputFormat = "text",
) -> None:
    """Observe a server with an OpenAI-compatible API under a designed load, and fit a calibration.

    A key for the server is read from OPENAI_API_KEY. Nothing is sent before you agree.
    """
    from calibrate.servers.cli import observe_server
    from calibrate.servers.observe import load_observation, plan_lines
    from scenarios.build.resolve import resolve
    from scenarios.calibration.observed import fit_observation
    from scenarios.files.flags import scenario_from_flags

    given = scenario_from_flags(scenario, flags, override or [], simulated=False)
    known = resolve(given)
    if url is not None or dry_run:
        for line in plan_lines(known.max_model_len, max_concurrency):
            typer.echo(line, err=True)
        if dry_run:
            return
        if not yes:
            typer.confirm("Send this?", abort=True, err=True)
        observe_server(
            str(url),
            served_model_name or given.model,
            seen,
            vocab_size=known.model.vocab_size,
            max_model_len=known.max_model_len,
            max_concurrency=max_concurrency,
            seed=seed,
        )
    if out is not None:
        found, _ = load_observation(seen)
        _print_fit(fit_observation(given, found, seen, out), output_format)


def _print_fit(facts: dict[str, Any], output_format: str) -> None:
    if output_format == "json":
        print_json(facts)
        return
    from reports.calibration.fitted import fitted_report
    from reports.terminal import print_report

    print_report(fitted_report(facts))
