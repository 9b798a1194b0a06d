"""Read JSON lines of kernel timings, as `calibrate.measure` writes them, from one or several
machines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodels.fields import AMOUNT, POSITIVE, TEXT, Fields
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
            kind, fields = row.get("kind"), Fields(row, where)
            if kind == "machine":
                machines[fields.need(TEXT, "id", what="a text")] = row
            elif kind == "timing":
                timings.append(_timing(fields))
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


def _timing(row: Fields) -> Timing:
    family = row.first("family")
    if family not in KINDS:
        raise row.error(f"family {family!r} is not one of {', '.join(KINDS)}")
    shape, variant, wanted = row.part("shape"), VARIANTS.get(family, ""), _shape_fields(family)
    if set(shape.values) != {*wanted, *([variant] if variant else [])}:
        fields = [*wanted, variant] if variant else wanted
        raise row.error(f"shape of {family} has {', '.join(shape.values)}, not {', '.join(fields)}")
    return Timing(
        machine=row.need(TEXT, "machine", what="a text"),
        family=family,
        kernel=row.need(TEXT, "kernel", what="a text"),
        formats=_formats(row.child("formats")),
        variant=str(shape.first(variant)) if variant else "",
        shape={name: shape.need(AMOUNT, name, what="a number") for name in wanted},
        seconds=row.need(POSITIVE, "seconds", what="a number above 0"),
        error=row.read(AMOUNT, "error"),
        flops=row.need(AMOUNT, "flops", what="a number"),
        num_bytes=row.need(AMOUNT, "bytes", what="a number"),
        is_graph=bool(row.first("graph")),
    )


def _shape_fields(family: TableKind) -> list[str]:
    """Return the fields of a line that key its shape. Elementwise kernels are keyed by rows and
    width."""
    if family == "elementwise":
        return ["rows", "width"]
    return list(KINDS[family].shape)


def _formats(formats: Fields) -> dict[str, str]:
    named = {role: str(name) for role, name in formats.values.items()}
    if "activations" in named:
        named["activations"] = _MULTIPLIED.get(named["activations"], named["activations"])
    for role, name in named.items():
        known = PEAKS if role == "activations" else FORMAT_BYTES
        if role not in _ROLES:
            raise formats.wrong(role, f"is not one of {', '.join(_ROLES)}")
        if name not in known:
            raise formats.wrong(role, f"is {name!r}, not one of {', '.join(known)}")
    return named
