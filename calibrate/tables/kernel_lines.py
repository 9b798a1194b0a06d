"""Read JSON lines of kernel timings, as `calibrate.measure` writes them, from one or several
machines."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodels.tables.kinds import FORMAT_BYTES, KINDS, PEAKS, VARIANTS, TableKind
from sim.errors import ScenarioError

_ROLES = ("activations", "weights", "kv", "state")
# Activations of block-scaled kernels are fp8 with one scale per 128 numbers of a row.
_MULTIPLIED = {"fp8_block": "fp8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """A timing of one kernel at one shape on one machine."""

    machine: str
    family: TableKind
    kernel: str
    formats: Mapping[str, str]
    variant: str
    shape: Mapping[str, float]
    """Shape without the variant."""
    seconds: float
    error: float | None
    flops: float
    num_bytes: float
    is_graph: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLines:
    """All content of a set of files."""

    machines: Mapping[str, Mapping[str, Any]]
    timings: Sequence[Timing]
    refused: Sequence[Mapping[str, Any]]
    """Cases that were not timed, each with its reason."""
    states: Sequence[Mapping[str, Any]]
    """Clock, power and temperature of the device before and after each family."""
    inputs: Mapping[str, str]
    """File name -> SHA-256 of its bytes."""


def read_lines(paths: Sequence[Path]) -> KernelLines:
    """Read the files. A torn last line, from a run that was cut off, is left out.

    Raises `ScenarioError` with file and line for any other invalid line.
    """
    machines: dict[str, Mapping[str, Any]] = {}
    timings: list[Timing] = []
    refused: list[Mapping[str, Any]] = []
    states: list[Mapping[str, Any]] = []
    inputs: dict[str, str] = {}
    places: dict[str, str] = {}
    for path in paths:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ScenarioError(f"{path}: {error.strerror}") from None
        name = path.name if path.name not in inputs else str(path)
        inputs[name] = hashlib.sha256(content).hexdigest()
        for number, row in _rows(path, content):
            where = f"{path}:{number}"
            kind = row.get("kind")
            if kind == "machine":
                machines[_text(row, "id", where)] = row
            elif kind == "timing":
                timings.append(_timing(row, where))
                places.setdefault(timings[-1].machine, where)
            elif kind == "refused":
                refused.append(row)
            elif kind == "state":
                states.append(row)
            else:
                raise ScenarioError(
                    f"{where}: kind is {kind!r}, not one of machine, timing, refused, state"
                )
    for machine, where in places.items():
        if machine not in machines:
            raise ScenarioError(
                f"{where}: machine {machine!r} is described nowhere; its machine line stands first "
                "in the file that python -m calibrate.measure wrote"
            )
    if not timings:
        raise ScenarioError(f"{', '.join(map(str, paths))}: no timings")
    return KernelLines(
        machines=machines, timings=timings, refused=refused, states=states, inputs=inputs
    )


def clock_shares(lines: KernelLines, family: str | None = None) -> list[float]:
    """Return the SM clock over its maximum, at each state of a family, or of all."""
    found = []
    for state in lines.states:
        clocks = lines.machines.get(str(state.get("machine")), {}).get("clocks") or {}
        now, most = state.get("sm_clock_mhz"), clocks.get("max_sm_mhz")
        if now and most and family in (None, state.get("family")):
            found.append(float(now) / float(most))
    return found


def _rows(path: Path, content: bytes) -> list[tuple[int, dict[str, Any]]]:
    lines = content.split(b"\n")
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            if number == len(lines):  # without a final newline the run was cut off while writing
                break
            raise ScenarioError(f"{path}:{number}: not JSON ({error})") from None
        if not isinstance(row, dict):
            raise ScenarioError(f"{path}:{number}: not an object but {type(row).__name__}")
        found.append((number, row))
    return found


def _timing(row: Mapping[str, Any], where: str) -> Timing:
    family = row.get("family")
    if family not in KINDS:
        raise ScenarioError(f"{where}: family {family!r} is not one of {', '.join(KINDS)}")
    shape = row.get("shape")
    if not isinstance(shape, dict):
        raise ScenarioError(f"{where}: shape must be an object, not {shape!r}")
    variant = VARIANTS.get(family, "")
    wanted = _shape_fields(family)
    if set(shape) != {*wanted, *([variant] if variant else [])}:
        fields = [*wanted, variant] if variant else wanted
        raise ScenarioError(
            f"{where}: shape of {family} has {', '.join(shape)}, not {', '.join(fields)}"
        )
    error = row.get("error")
    return Timing(
        machine=_text(row, "machine", where),
        family=family,
        kernel=_text(row, "kernel", where),
        formats=_formats(row.get("formats", {}), where),
        variant=str(shape[variant]) if variant else "",
        shape={name: _number(shape, name, f"{where}: shape.", least=0.0) for name in wanted},
        seconds=_number(row, "seconds", f"{where}: ", above=0.0),
        error=None if error is None else _number(row, "error", f"{where}: ", least=0.0),
        flops=_number(row, "flops", f"{where}: ", least=0.0),
        num_bytes=_number(row, "bytes", f"{where}: ", least=0.0),
        is_graph=bool(row.get("graph")),
    )


def _shape_fields(family: TableKind) -> list[str]:
    """Return the fields of a line that key its shape. Elementwise kernels are keyed by rows and
    width."""
    if family == "elementwise":
        return ["rows", "width"]
    return list(KINDS[family].shape)


def _formats(formats: Any, where: str) -> dict[str, str]:
    if not isinstance(formats, dict):
        raise ScenarioError(f"{where}: formats must be an object, not {formats!r}")
    named = {role: str(name) for role, name in formats.items()}
    if "activations" in named:
        named["activations"] = _MULTIPLIED.get(named["activations"], named["activations"])
    for role, name in named.items():
        if role not in _ROLES:
            raise ScenarioError(f"{where}: formats.{role} is not one of {', '.join(_ROLES)}")
        known = PEAKS if role == "activations" else FORMAT_BYTES
        if name not in known:
            raise ScenarioError(
                f"{where}: formats.{role} is {name!r}, not one of {', '.join(known)}"
            )
    return named


def _text(row: Mapping[str, Any], field: str, where: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value:
        raise ScenarioError(f"{where}: {field} must be a text, not {value!r}")
    return value


def _number(
    row: Mapping[str, Any],
    field: str,
    where: str,
    *,
    least: float | None = None,
    above: float | None = None,
) -> float:
    value = row.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ScenarioError(f"{where}{field} must be a finite number, not {value!r}")
    if (least is not None and value < least) or (above is not None and value <= above):
        bound = f"at least {least:g}" if least is not None else f"above {above:g}"
        raise ScenarioError(f"{where}{field} must be {bound}, not {value!r}")
    return float(value)
