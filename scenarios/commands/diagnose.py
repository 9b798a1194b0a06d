"""``fleetcast diagnose``: why a server was slow, from what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scenarios.commands.app import open_in_browser, print_json
from scenarios.commands.options import (
    Flags,
    OpenPage,
    OutputFormat,
    Override,
    check_open,
    takes_flags,
)

if TYPE_CHECKING:
    from scenarios.files.yaml_text import Places


@takes_flags("model gpu tp replicas trace preset input_tokens output_tokens rate num_requests")
def diagnose(
    scenario: Annotated[
        str,
        typer.Argument(
            help="Scenario YAML, a server's command line (in quotes or in a file), or its start-up "
            "log."
        ),
    ],
    measured: Annotated[
        Path,
        typer.Argument(help="What was measured: a CSV of requests, or a load tool's results."),
    ],
    *,
    flags: Flags,
    window: Annotated[
        str | None, typer.Option(help="Length of a window: 5min, 30s, ... Default: chosen.")
    ] = None,
    what_if: Annotated[
        bool, typer.Option(help="Simulate changes that would have prevented it.")
    ] = True,
    measured_format: Annotated[
        str | None, typer.Option(help="Format of the measurement. Default: recognised.")
    ] = None,
    run_name: Annotated[
        str | None, typer.Option("--run", help="Which run, where there are several.")
    ] = None,
    override: Override = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write: diagnosis.json and an HTML page.")
    ] = None,
    open_page: OpenPage = False,
    output_format: OutputFormat = "text",
) -> None:
    """Replay what was measured, and say which bad windows traffic explains, and why.

    A window is raised if its latency is half above the usual one. The replay shows what the same
    requests cost without any other trouble; time that it does not have came from elsewhere.
    """
    from calibrate.results.detect import read_measured
    from scenarios.experiments.diagnosis.diagnose import diagnose as find_causes
    from scenarios.files.flags import apply_flags
    from scenarios.files.load import apply_override
    from scenarios.run.result_folder import json_text, make_folder, write_files
    from scenarios.validation.compare import choose_run

    check_open(open_page, out)
    given = {flag: value for flag, value in flags.items() if value is not None}
    run = choose_run(read_measured(measured, format=measured_format), run_name)
    values, places = _server(scenario, given)
    apply_flags(values, places, given)
    for one in override or []:
        apply_override(values, places, one)
    content = find_causes(values, places, run, window=window, has_changes=what_if)
    page = None
    if out is not None:
        from reports.diagnosis.report import write_diagnosis_page

        make_folder(out)
        write_files(out, {"diagnosis.json": json_text(content)})
        page = write_diagnosis_page(content, out)
    if output_format == "json":
        print_json(content)
    else:
        from reports.diagnosis.report import diagnosis_report
        from reports.terminal import print_report

        print_report(diagnosis_report(content))
        if page is not None:
            print(f"results in {out}, page in {page}")
    if open_page and page is not None:
        open_in_browser(page)


def _server(text: str, flags: dict[str, Any]) -> tuple[dict[str, Any], Places]:
    """Return a scenario's values from a file of any kind that describes a server, or from its
    command line. Raises `ScenarioError`."""
    from scenarios.files.scenario_file import read_scenario_file
    from scenarios.files.yaml_text import parse_yaml
    from scenarios.server_flags.from_log import read_log
    from scenarios.server_flags.reading import read_command
    from sim.errors import ScenarioError

    is_file = "\n" not in text and len(text) < 4096 and Path(text).is_file()
    if is_file and Path(text).suffix in (".yaml", ".yml"):
        return read_scenario_file(text)
    if not is_file and " " not in text.strip():
        raise ScenarioError(f"{text}: no such file, and no command line of a server")
    shape = {flag: value for flag, value in flags.items() if flag in ("--model", "--gpu")}
    said = Path(text).read_text(encoding="utf-8", errors="replace") if is_file else text
    if is_file and ("INFO" in said or "server_args=" in said):
        reading = read_log(Path(text), flags=shape)
    else:
        engine = "sglang" if "sglang" in said else "vllm"
        reading = read_command(engine, [said], flags=shape)
    values, places = parse_yaml(reading.text, "the server's scenario")
    return values, places
