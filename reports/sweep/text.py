"""Terminal text of a sweep: the answer first, then the best points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from reports.numbers import humanised
from reports.sweep.answer import alerts, best_note, headline, reason
from reports.sweep.facts import (
    Effect,
    axis_keys,
    effects,
    failures,
    kept_points,
    nearest_points,
    points_table,
    row_of,
)
from reports.sweep.folder import Content
from reports.sweep.words import axis_label, axis_value, figure_label, value_text
from reports.terminal import MAX_WIDTH, Screen

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

SHOWN = 15
"""Most points in the table of the best."""


class Ranked(NamedTuple):
    """The best points as a table of text."""

    headings: list[str]
    rows: list[list[str]]


def shown_figures(content: Content, points: pd.DataFrame) -> list[str]:
    """Return the columns of the table of the best: the deciding figure, the SLO's figures, and
    what they rest on."""
    names = [content["choice"]["best"], "attainment", "ttft.p99", "tpot.p99", "e2e.p99"]
    names += ["gpu_busy", "gpus"]
    known = [name for name in dict.fromkeys(names) if name in points]
    varied = [n for n in known if n != "gpus" or points[n].nunique() > 1]
    return [name for name in varied if points[name].notna().any()]


def ranked(content: Content, points: pd.DataFrame, most: int = SHOWN) -> Ranked:
    """Return the best points that meet the requirement, or those nearest to it if none does."""
    keys = [key for key in axis_keys(content) if points[key].nunique(dropna=False) > 1]
    chosen = kept_points(content)[:most]
    if not chosen and "attainment" in points:
        chosen = nearest_points(points)[:most]
    figures = shown_figures(content, points)
    labels = [axis_label(key, axis_keys(content)) for key in keys]
    rows = []
    for point in chosen:
        of_point = row_of(points, point)
        cells = [axis_value(of_point[key]) for key in keys]
        cells += [value_text(content, name, of_point[name]) for name in figures]
        rows.append([f"{point}", *cells])
    return Ranked(["Point", *labels, *(figure_label(name) for name in figures)], rows)


def effect_rows(content: Content, points: pd.DataFrame) -> list[tuple[str, list[Effect]]]:
    """Return the best result with each value of an axis, axis by axis."""
    by_axis: dict[str, list[Effect]] = {}
    for effect in effects(content, points):
        by_axis.setdefault(effect.axis, []).append(effect)
    return list(by_axis.items())


def cause_rows(content: Content, points: pd.DataFrame) -> list[tuple[str, float]]:
    """Return where the end-to-end time of the best point goes: (account, share), largest first."""
    ranking = kept_points(content)
    if not ranking:
        return []
    row = row_of(points, ranking[0])
    accounts = {
        name.partition(".")[2]: float(row[name])
        for name in row
        if name.startswith("e2e_account.") and row[name] == row[name] and row[name] > 0
    }
    total = sum(accounts.values())
    ordered = sorted(accounts.items(), key=lambda item: -item[1])
    return [
        (humanised(name), seconds / total) for name, seconds in ordered if seconds > total / 100
    ]


def condition_rows(content: Content, table: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the conditions that all points share, and the number of points."""
    keys = axis_keys(content)
    rows = [(axis_label(key, keys), axis_value(value)) for key, value in content["base"].items()]
    for axis in content["axes"]:
        key = axis["key"]
        label = f"Axis {axis_label(key, keys)}"
        if axis["kind"] == "random":
            drawn = table[key].dropna()
            span = (
                f"{axis_value(drawn.min())} to {axis_value(drawn.max())}"
                if drawn.dtype.kind in "if"
                else ", ".join(dict.fromkeys(axis_value(value) for value in drawn))
            )
            rows.append((label, f"{axis['draws']:,} draws, {span}"))
        else:
            text = ", ".join(axis_value(value) for value in axis["values"])
            rows.append((label, text + (" (zipped)" if axis["kind"] == "zipped" else "")))
    rows += [(f"Left out by {text}", f"{count:,} points") for text, count in _left_out(content)]
    rows.append(("Points", f"{content['points']:,}"))
    rows.append(("Runs of a point", f"{content['replications']:,}"))
    hashes = (
        sorted(set(table["calibration_sha256"].dropna())) if "calibration_sha256" in table else []
    )
    if len(hashes) == 1:
        rows.append(("Calibration (SHA-256)", hashes[0]))
    elif hashes:
        rows.append(("Calibrations", f"{len(hashes)}, by column calibration_sha256"))
    rows.append(("Code (SHA-256)", content["code_sha256"]))
    return rows


def _left_out(content: Content) -> list[tuple[str, int]]:
    return [(text, count) for text, count in content["left_out"].items() if count]


def evidence_rows(table: pd.DataFrame) -> list[tuple[str, float]]:
    """Return the evidence labels of the points' figures, and the share of runs with each."""
    if "evidence" not in table:
        return []
    shares: Any = table["evidence"].dropna().value_counts(normalize=True, sort=True)
    return [(str(label), float(share)) for label, share in shares.items()]


_ROWS = 8
_LONGEST = 240


def print_sweep(content: Content, table: pd.DataFrame, console: Console | None = None) -> None:
    """Print the contents of sweep.json and the table to a terminal, a file or a pipe."""
    from rich.console import Console

    chosen = console or Console(highlight=False)
    if console is None and not chosen.is_terminal:
        chosen.width = MAX_WIDTH  # a file or a pipe has no width of its own
    screen = Screen(chosen)
    points = points_table(content, table)
    screen.say(headline(content, points), "bold green" if kept_points(content) else "bold red")
    for line in (reason(content, points), best_note(content, points)):
        if line:
            screen.say(line)
    if content["choice"] is not None:
        best = ranked(content, points, _ROWS)
        headings, rows = best.headings, best.rows
        while len(headings) > 3 and _width(headings, rows) > screen.width:
            headings, rows = headings[:-1], [row[:-1] for row in rows]
        if rows:
            screen.say("")
            screen.table(headings, rows)
    failed = [f"{f.points:,}: {_shortened(f.message)}" for f in failures(content, table)[:5]]
    screen.warnings([*alerts(content, table), *failed])


def _shortened(message: str) -> str:
    return message if len(message) < _LONGEST else f"{message[:_LONGEST]} ..."


def _width(headings: list[str], rows: list[list[str]]) -> int:
    columns = zip(headings, *rows, strict=True)
    return sum(max(map(len, column)) + 2 for column in columns)
