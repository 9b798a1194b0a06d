"""The work of ``fleetcast validate``, once its options are read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from scenarios.run.result_folder import make_folder
from scenarios.validation.validate import PARTS, Validation, validate
from sim.errors import ScenarioError

if TYPE_CHECKING:
    from costmodels.operators.sources import Choice


def run_validate(
    folder: Path,
    *,
    only: list[str],
    skip: list[str],
    profile: str | None,
    operators: Choice,
    out: Path | None,
    as_json: bool,
) -> None:
    """Score a folder of measurements, print what was found, write what was asked for.

    Raises `ScenarioError` if nothing can be scored or ``out`` cannot be written.
    """
    unknown = [part for part in skip if part not in PARTS]
    if unknown:
        raise ScenarioError(f"--skip {unknown[0]}: there are {', '.join(PARTS)}")
    if out is not None:
        make_folder(out)
    found = validate(
        folder, only=only, skip=skip, profile=profile, operators=operators, progress=_note
    )
    # before printing, because a reader that closes the pipe (``| head``) ends the run
    if out is not None:
        page = _write(found, out)
    if as_json:
        print(json.dumps(found.content, indent=1, allow_nan=False))
    else:
        from reports.terminal import print_report
        from reports.validation.report import validation_report

        print_report(validation_report(found.content))
        if out is not None:
            print(f"\nresults in {out}, page in {page}")


def _note(what: str) -> None:
    """Show on a terminal what is being scored."""
    if sys.stderr.isatty():
        print(f"\r\x1b[Kscoring {what}\r", end="", file=sys.stderr, flush=True)


def _write(found: Validation, out: Path) -> Path:
    """Write accuracy.json, the latencies behind it and the page that is drawn from both."""
    from reports.validation.report import write_validation_page

    write_validation(found, out)
    return write_validation_page(out)


def write_validation(found: Validation, folder: Path) -> None:
    """Write ``accuracy.json`` and ``latencies.parquet``. Raises `ScenarioError` if it cannot."""
    frames = [
        pd.DataFrame({"run": name, "metric": metric, **sample})
        for name, scored in found.runs.items()
        for metric, sample in scored.samples_s.items()
    ]
    empty = pd.DataFrame({name: [] for name in ("run", "metric", "predicted", "measured")})
    try:
        latencies = pd.concat(frames, ignore_index=True) if frames else empty
        latencies.to_parquet(folder / "latencies.parquet", index=False)
        text = json.dumps(found.content, indent=1, allow_nan=False)
        (folder / "accuracy.json").write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"cannot write {folder}: {error.strerror}") from error
