"""The controlled steps of a recording: what was asked for, and what was measured."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrate.fits.engine_log import StepRows
from calibrate.fits.engine_rows import is_held_out, point_parameters
from costmodels.fields import POSITIVE, Fields
from scenarios.validation.folder import Recording

PARAMETERS = {
    "decode": ("B", "L"),
    "prefill": ("P",),
    "extend": ("P", "C"),
    "multiprefill": ("N", "P"),
    "mixed": ("P", "D", "L"),
    "mixed_interval": ("P", "D", "L"),
    "prefill_latency": ("P",),
}
"""Parameters of each kind of point.

mixed_interval: the mixed step alone, without the step before it, whose outputs are read late.
prefill_latency: a lone prompt until the engine is idle again.

B: decoding sequences. L: their context. P: new tokens of a prompt. C: its tokens already in the KV
cache. N: prompts. D: sequences that decode meanwhile.
"""

_CHUNKED = re.compile(r"(?:.*:)?prefill_P(\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measured step; times are in milliseconds over its repeats."""

    kind: str
    parameters: dict[str, int]
    """Named as in `PARAMETERS`; ``chunk`` counts the steps of a prompt longer than the budget."""
    measured_ms: float
    """Median over the repeats."""
    min_ms: float
    max_ms: float
    repeats: int
    held_out: bool


def read_points(recording: Recording) -> tuple[list[Point], list[str]]:
    """Return the points of ``e1`` and of the chunked prompts, and a line for each unknown kind.

    Raises `ScenarioError` or `TraceError` if a file or a field is damaged.
    """
    points, unknown = [], set()
    for row in Fields(recording.info, str(recording.info_path)).children("e1"):
        kind = str(row.first("kind"))
        if kind in PARAMETERS:
            points.append(_point(recording.key, row))
        else:
            unknown.add(kind)
    lines = [f"controlled steps of kind {kind!r} are not known: left out" for kind in unknown]
    prompts = {point.parameters["P"] for point in points if point.kind == "prefill"}
    for run, rows in recording.controlled_runs.items():
        match = _CHUNKED.match(run)
        if match and int(match[1]) not in prompts:
            points += _chunks(recording.key, int(match[1]), rows)
    return points, sorted(lines)


def point_of_run(run: str) -> dict[str, Any] | None:
    """Return the point that a controlled run (``boot1:decode_B8_L128``) measured; None if
    unknown."""
    kind, _, rest = run.rpartition(":")[2].partition("_")
    if kind == "multiprefill":
        rest = re.sub(r"^(\d+)x(\d+)$", r"N\1_P\2", rest)
    values = dict(re.findall(r"(?:^|_)([A-Z])(\d+)(?=_|$)", rest))
    if set(values) != set(PARAMETERS.get(kind, ())):
        return None
    return {"kind": kind, **{name: int(value) for name, value in values.items()}}


def _point(key: str, row: Fields) -> Point:
    for name in PARAMETERS[row.values["kind"]]:
        row.count(name)
    median_ms, low_ms, high_ms = (
        row.need(POSITIVE, f"ms_{statistic}", what="a number above 0")
        for statistic in ("median", "min", "max")
    )
    return Point(
        kind=row.values["kind"],
        parameters=point_parameters(row.values),
        measured_ms=median_ms,
        min_ms=low_ms,
        max_ms=high_ms,
        repeats=row.optional_count("n", default=1),
        held_out=is_held_out(key, row.values),
    )


def _chunks(key: str, prompt: int, rows: StepRows) -> list[Point]:
    """Return one point per chunk of a prompt longer than the token budget, from its steps.

    The first chunk is timed from its scheduling, the others from the output before. If there are
    several repeats, the first is a warm-up.
    """
    starts = np.flatnonzero(rows.ctx_prefill_start_sum == 0)
    sizes = set(np.diff(np.append(starts, len(rows))).tolist())
    if not len(starts) or starts[0] or len(sizes) != 1 or sizes == {1}:
        return []
    begun_s = np.append(0.0, rows.t_out[:-1])
    begun_s[starts] = rows.t_sched[starts]
    values_ms = ((rows.t_out - begun_s) * 1e3).reshape(len(starts), -1)
    values_ms = values_ms[1:] if len(values_ms) > 1 else values_ms
    points = []
    for chunk, of_chunk in enumerate(values_ms.T, 1):
        asked = {"kind": "prefill", "P": prompt, "chunk": chunk}
        points.append(
            Point(
                kind="prefill",
                parameters=point_parameters(asked),
                measured_ms=float(np.median(of_chunk)),
                min_ms=float(of_chunk.min()),
                max_ms=float(of_chunk.max()),
                repeats=len(of_chunk),
                held_out=is_held_out(key, asked),
            )
        )
    return points
