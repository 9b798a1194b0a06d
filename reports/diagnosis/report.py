"""The report of a diagnosis: which windows were bad, what traffic explains, what would have
helped."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from reports import svg
from reports.document import (
    Block,
    Column,
    Figure,
    Report,
    Section,
    Table,
    Text,
    numbers,
    warning_section,
)
from reports.numbers import LATENCY_LABELS, MISSING, duration, listed, percent, significant
from reports.svg import Plot, Sheet

Content = Mapping[str, Any]
_QUIET = "as usual"
_MOST_WINDOWS = 40
_SPREAD = 20
"""Times the usual value from which latencies are drawn on a logarithmic axis."""
_REPLAYED = (
    " Replayed: times the factor by which this server is slower than its replay in usual windows. "
    "Explained: the replay's share of what is above the usual."
)
_LEAST_RISE = 0.1
"""Share of the whole rise from which an account is named."""


def write_diagnosis_page(content: Content, folder: Path) -> Path:
    """Write ``diagnosis.html`` into a folder and return its path. Raises `ScenarioError` if it
    cannot be written."""
    from reports.html import write_page

    return write_page(diagnosis_report(content), folder / "diagnosis.html")


def diagnosis_report(content: Content) -> Report:
    """Return the report of what ``fleetcast diagnose --format json`` prints."""
    if "whole" in content:
        return _whole_report(content)
    return Report(
        eyebrow="Diagnosis",
        heading=f"{content['run']} ({content['model']} on {content['gpu']})",
        headline=_headline(content),
        sentences=_sentences(content),
        sections=[
            Section("windows", "Window by window", _windows(content)),
            Section("accounts", "What rose in the replay", _accounts(content)),
            Section("changes", "What would have helped", _changes(content)),
            Section("requests", "The slowest requests of the bad windows", _requests(content)),
            warning_section(content["notes"]),
        ],
        closing=[_method(content)],
        version=content["fleetcast_version"],
        pipe_width=None,
    )


def _whole_report(content: Content) -> Report:
    """Return the report of a measurement without times of requests."""
    rows = [
        [
            f"{LATENCY_LABELS[row['metric']]} {row['statistic']}",
            _time(row["measured_s"]),
            _time(row["replayed_s"]),
            ""
            if not row["replayed_s"]
            else f"{significant(row['measured_s'] / row['replayed_s'])} times",
        ]
        for row in content["whole"]
    ]
    table = Table([Column(""), *numbers("Measured", "Simulated", "Ratio")], rows)
    said = (
        "simulated: the scenario's workload"
        if content["is_replayed"]
        else "to compare, give the load: --rate with --input-tokens and --output-tokens"
    )
    return Report(
        eyebrow="Diagnosis",
        heading=f"{content['run']} ({content['model']} on {content['gpu']})",
        headline="The measurement has no times of requests: only the whole can be looked at.",
        sentences=_counted(content["counted"]),
        sections=[
            Section("whole", "The whole run", [table, Text(said, "note")]),
            warning_section(content["notes"]),
        ],
        closing=[f"{content['num_requests']:,} requests of {content['tool']}"],
        version=content["fleetcast_version"],
        pipe_width=None,
    )


def _counted(counts: Mapping[str, float]) -> list[str]:
    found = []
    if counts.get("num_preemptions"):
        found.append(
            f"The server preempted {counts['num_preemptions']:,.0f} times: its KV cache was full."
        )
    if counts.get("prefix_cache_queries"):
        share = counts.get("prefix_cache_hits", 0.0) / counts["prefix_cache_queries"]
        found.append(f"Its prefix cache hit {percent(share)} of the prompt tokens.")
    return found


def _bad(content: Content) -> list[dict[str, Any]]:
    return [window for window in content["windows"] if window["verdict"] != _QUIET]


def _of(content: Content, *verdicts: str) -> list[dict[str, Any]]:
    return [window for window in content["windows"] if window["verdict"] in verdicts]


def _name(content: Content) -> str:
    return f"{LATENCY_LABELS[content['metric']]} {content['statistic']}"


def _headline(content: Content) -> str:
    bad, usual = _bad(content), duration(content["usual_s"])
    total = sum(window["requests"] > 0 for window in content["windows"])
    if not bad:
        return f"No window stands out: {_name(content)} is {usual} in the median one of {total}."
    worst = max(window["measured_s"] for window in bad)
    said = (
        f"{len(bad)} of {total} windows are bad: {_name(content)} is up to {duration(worst)} where "
        f"{usual} is usual"
    )
    if not content["is_replayed"]:
        return f"{said}. Without token counts nothing can be replayed."
    explained, in_part, other = (
        len(_of(content, verdict)) for verdict in ("traffic", "traffic in part", "not traffic")
    )
    parts = [
        f"traffic explains {explained}" if explained else "",
        f"{in_part} in part" if in_part else "",
        f"{other} not" if other else "",
    ]
    return f"{said}; {', '.join(filter(None, parts))}."


def _sentences(content: Content) -> list[str]:
    found = []
    rises = [row for row in content["accounts"] if row["rise_s"] > 0]
    whole = sum(row["rise_s"] for row in rises)
    if whole and _of(content, "traffic", "traffic in part"):
        named = [row for row in rises if row["rise_s"] >= _LEAST_RISE * whole]
        said = listed(f"{row['account']} (+{duration(row['rise_s'])} a request)" for row in named)
        found.append(f"In the replay of the bad windows, what rose is {said}.")
        found.append(_load_sentence(content))
    if _of(content, "not traffic", "traffic in part"):
        found.append(_outside_sentence(content))
    best = next((row for row in content["changes"] if row["after_s"] is not None), None)
    if best is not None and best["after_s"] < 0.9 * best["before_s"]:
        found.append(
            f"Of the changes tried, {best['name']} helps most: {duration(best['before_s'])} of "
            f"the worst explained window would be {duration(best['after_s'])}."
        )
    return found


def _load_sentence(content: Content) -> str:
    """Say how the traffic of the explained windows differs from that of the others."""
    bad = _of(content, "traffic", "traffic in part")
    usual = [w for w in content["windows"] if w["verdict"] == _QUIET and w["requests"]]
    parts = []
    for field, words in (
        ("requests_per_s", "requests/s"),
        ("prompt_tokens_per_s", "prompt tokens/s"),
        ("output_tokens_per_s", "output tokens/s"),
        ("longest_prompt", "longest prompt, tokens"),
    ):
        values = [np.median([w[field] for w in some if w[field]] or [0]) for some in (bad, usual)]
        if all(values) and not 0.8 < values[0] / values[1] < 1.25:
            parts.append(f"{words} {significant(values[0])} instead of {significant(values[1])}")
    return f"Their traffic: {'; '.join(parts)}." if parts else ""


def _outside_sentence(content: Content) -> str:
    """Say where to look for the time that the replay does not have."""
    tpot = content["others"].get("tpot")
    metric = content["metric"]
    if metric == "tpot" or (tpot is not None and tpot > 1.3):
        where = (
            "tokens came more slowly too, so look at the GPU and its host: clocks, another "
            "process, a busy CPU, a restart that compiles"
        )
    elif metric == "ttft" and tpot is not None:
        where = (
            "TPOT stayed as it was, so look before the first token: a cache that had lost its "
            "prefixes, the API server, tokenization, the network, requests that the file leaves out"
        )
    else:
        where = "look at what the file does not hold: prefix hits, other clients, the host"
    return f"What traffic does not explain: {where}."


def _windows(content: Content) -> list[Block]:
    rows = [
        [
            _clock(window["start_s"]),
            f"{window['requests']:,}",
            _rate(window["requests_per_s"]),
            _rate(window["prompt_tokens_per_s"]),
            _rate(window["output_tokens_per_s"]),
            _time(window["measured_s"]),
            _time(_expected(content, window)),
            MISSING if window["explained"] is None else percent(window["explained"]),
            window["verdict"],
        ]
        for window in content["windows"]
    ]
    columns = [
        Column("From"),
        Column("Requests", "number", drop=1),
        *numbers("/s"),
        Column("Prompt/s", "number", drop=2),
        Column("Output/s", "number", drop=2),
        *numbers("Measured", "Replayed", "Explained"),
        Column("Verdict"),
    ]
    strong = [n for n, window in enumerate(content["windows"]) if window["verdict"] != _QUIET]
    return [
        Figure(partial(_curves, content)),
        Table(columns, rows, strong=strong, most_rows=_MOST_WINDOWS),
        Text(
            f"{_name(content)} of the requests that arrive in each window of "
            f"{duration(content['window_s'])}.{_REPLAYED if content['is_replayed'] else ''}",
            "note",
        ),
    ]


def _curves(content: Content, sheet: Sheet) -> Plot:
    """Draw the measured and the replayed latency of each window."""
    windows = content["windows"]
    unit, unit_s = svg.time_unit(content["window_s"] * len(windows))
    at = np.array([w["start_s"] + content["window_s"] / 2 for w in windows]) / unit_s
    measured = np.array([w["measured_s"] or np.nan for w in windows], float)
    replayed = np.array([_expected(content, w) or np.nan for w in windows], float)
    bad = len(_bad(content))
    with sheet.drawing(2.6) as figure:
        axes = figure.subplots()
        for window in windows:
            if window["verdict"] != _QUIET:
                start = window["start_s"] / unit_s
                axes.axvspan(start, start + content["window_s"] / unit_s, color=svg.GRID, lw=0)
        axes.plot(at, measured, color=svg.VERMILION, marker=".", label="measured")
        if np.isfinite(replayed).any():
            axes.plot(at, replayed, color=svg.BLUE, ls="--", lw=1.1, label="replayed")
        if np.nanmax(measured) > _SPREAD * content["usual_s"]:
            axes.set_yscale("log")
        else:
            axes.set_ylim(0, None)
        axes.set_xlabel(f"time since the first arrival ({unit})")
        axes.set_ylabel(f"{_name(content)} (s)")
        axes.legend()
        caption = (
            f"{_name(content)} in windows of {duration(content['window_s'])}; the {bad} bad ones "
            "are shaded."
        )
        return sheet.plot(figure, "curves", "Measured and replayed", caption, caption)


def _accounts(content: Content) -> list[Block]:
    rows = [
        [row["account"], *(_time(row[name]) for name in ("usual_s", "raised_s")), _signed(row)]
        for row in content["accounts"]
        if row["usual_s"] or row["raised_s"]
    ]
    table = Table([Column("Mean a request"), *numbers("Usual", "Bad windows", "Rise")], rows)
    return [table] if rows and _bad(content) else []


def _changes(content: Content) -> list[Block]:
    rows = [
        [
            row["name"],
            ", ".join(f"{key}={value}" for key, value in row["settings"].items()),
            _time(row["before_s"]),
            _time(row["after_s"]),
            row["refused"] or "",
        ]
        for row in content["changes"]
    ]
    columns = [
        Column("Change"),
        Column("Setting", drop=1),
        *numbers("Before", "After"),
        Column("Refused", wraps=True),
    ]
    if not any(row["refused"] for row in content["changes"]):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    note = f"{_name(content)} of the worst window that traffic explains; each change alone."
    return [Table(columns, rows), Text(note, "note")] if rows else []


def _requests(content: Content) -> list[Block]:
    rows = [
        [
            f"{row['place']:,}",
            _clock(row["arrival_s"]),
            _count(row["prompt_tokens"]),
            _count(row["output_tokens"]),
            _time(row["measured_s"]),
            _time(row["replayed_s"]),
        ]
        for row in content["requests"]
    ]
    headings = ("Row", "Arrival", "Prompt", "Output", "Measured", "Replayed")
    return [Table([Column(headings[0]), *numbers(*headings[1:])], rows)] if rows else []


def _method(content: Content) -> str:
    said = f"{content['num_requests']:,} requests of {content['tool']}"
    if content["failed"]:
        said += f" ({content['failed']:,} failed ones left out)"
    if content["bias"] is not None:
        said += f" · in usual windows the server takes {content['bias']:.2f} times the replay"
    return said


def _expected(content: Content, window: Mapping[str, Any]) -> float | None:
    found = window["replayed_s"]
    return None if found is None or content["bias"] is None else found * content["bias"]


def _clock(time_s: float) -> str:
    """Return a time since the first arrival as hours, minutes and seconds."""
    minutes, seconds = divmod(round(time_s), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def _time(value_s: float | None) -> str:
    return MISSING if value_s is None else duration(value_s)


def _rate(value: float | None) -> str:
    return MISSING if value is None else significant(value)


def _count(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.0f}"


def _signed(row: Mapping[str, Any]) -> str:
    sign = "+" if row["rise_s"] >= 0 else "\N{MINUS SIGN}"
    return f"{sign}{duration(abs(row['rise_s']))}"
