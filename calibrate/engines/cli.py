"""Command line of a measuring session, for the machine that serves: it needs vLLM and this
checkout, and none of fleetcast's own dependencies."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibrate.engines.grid import GRIDS
from calibrate.engines.session import measure_engine
from calibrate.engines.vllm_engine import start_vllm
from sim.errors import FleetcastError


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and return the exit code: 0 done, 2 an option or engine that cannot be used."""
    options = _parser().parse_args(argv)
    try:
        measure_vllm(
            options.model,
            options.out,
            key=options.key,
            grid=options.grid,
            random_weights=options.random_weights,
            engine_args=parse_engine_args(options.engine_args),
            window_s=options.serve_s,
            budget_s=options.budget_s,
        )
    except FleetcastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def measure_vllm(
    model: str,
    folder: Path,
    *,
    key: str,
    grid: str,
    random_weights: bool,
    engine_args: dict[str, Any],
    window_s: float,
    budget_s: float,
) -> None:
    """Start vLLM, measure it and write ``folder``. Raises `FleetcastError` if it does not
    start."""
    if random_weights:
        _say(
            "random weights: what experts a token reaches is not what a trained model does, so "
            "that decode steps of expert models say nothing of their weights' traffic"
        )
    driver, info = start_vllm(model, random_weights=random_weights, engine_args=engine_args)
    _say(f"vLLM {info['vllm']} is up after {info['load_s']} s: {info['num_gpu_blocks']} KV blocks")
    measure_engine(
        driver,
        info,
        folder,
        key=key,
        grid=grid,
        window_s=window_s,
        budget_s=budget_s,
        say=_say,
    )
    _say(f"measured: {folder}")


def parse_engine_args(text: str) -> dict[str, Any]:
    """Read engine arguments as JSON. Raises `FleetcastError`."""
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise FleetcastError(f"engine arguments {text!r}: {error}") from None
    if not isinstance(given, dict):
        raise FleetcastError(f'engine arguments {text!r}: write a mapping, {{"max_num_seqs": 256}}')
    return given


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m calibrate.engines",
        description="Measure the steps of vLLM's engine core on this machine, into a folder.",
    )
    add = parser.add_argument
    add("--model", required=True, help="what vLLM serves: an id, a folder or a config.json")
    add("--out", type=Path, required=True, metavar="FOLDER", help="the folder to write")
    add("--key", default="engine", help="name of the files: KEY_info.json ...; default: engine")
    add("--grid", choices=GRIDS, default="compact", help="default: compact, about two minutes")
    add("--random-weights", action="store_true", help="no checkpoint is loaded")
    add("--engine-args", default="{}", metavar="JSON", help="fields of vLLM's EngineArgs")
    add("--serve-s", type=float, default=30, metavar="S", help="of each serving run; 0: none")
    add("--budget-s", type=float, default=float("inf"), metavar="S", help="end within S seconds")
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
