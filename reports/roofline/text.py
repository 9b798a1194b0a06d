"""The answer of ``fleetcast explain`` as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.roofline.words import (
    PEAK_NAMES,
    account,
    amount,
    answer_text,
    by_evidence,
    intensity,
    precision_cells,
    quality_lines,
    step_text,
    system_text,
)
from reports.screen import Screen
from reports.words import duration, percent, significant

_TIMES = ("calls", "time", "share")
_WORDS = ("bound by", "account")
_AMOUNTS = ("FLOP", "weights", "state", "activ.", "comm.", "FLOP/B")
# Columns that one table of all needs; narrower screens get two.
_WIDE = 128


def print_step(facts: Mapping[str, Any], screen: Screen | None = None) -> None:
    """Print the facts of ``scenarios.explain_step``."""
    screen = screen or Screen(max_width=160)
    screen.say(answer_text(facts), "bold")
    screen.heading(f"Operators of one step on one rank: {step_text(facts)}")
    _operators(screen, facts)
    ridge = ", ".join(
        f"{PEAK_NAMES[peak]} {value:,.0f}" for peak, value in facts["ridge_flops_per_byte"].items()
    )
    screen.say(
        "Bytes are of device memory, in decimal units (comm.: over the links). Compute and memory "
        f"take equally long at so many FLOPs a byte: {ridge}.",
        "dim",
    )
    _precision(screen, facts)
    _accounts(screen, facts)
    _host(screen, facts)
    _constants(screen, facts)
    screen.say("")
    for note in facts["notes"]:
        screen.say(f"{note}.", "dim")
    screen.say(system_text(facts), "dim")


def _operators(screen: Screen, facts: Mapping[str, Any]) -> None:
    totals = facts["totals"]
    listed = [*facts["operators"], {**totals, "name": "all", "share": 1.0}]
    names = [row["name"] for row in listed]
    times = [
        [f"{row['calls']:,}", duration(row["seconds"]), percent(row["share"])] for row in listed
    ]
    words = [[row["bound"], account(next(iter(row["accounts"]), ""))] for row in facts["operators"]]
    amounts = [[*_amounts(row), intensity(_intensity(row))] for row in listed]
    labels = [row["evidence"] for row in facts["operators"]]
    if screen.width >= _WIDE:
        parts = zip(names, times, amounts, [*words, ["", ""]], [*labels, ""], strict=True)
        screen.table(
            ["", *_TIMES, *_AMOUNTS, *_WORDS, "evidence"],
            [[name, *time, *amount, *word, label] for name, time, amount, word, label in parts],
            left=(*_WORDS, "evidence"),
        )
        return
    rows = zip(names, times, [*words, []], strict=True)
    screen.table(["", *_TIMES, *_WORDS], [[n, *t, *w] for n, t, w in rows], left=_WORDS)
    screen.say("")
    screen.table(["", *_AMOUNTS], [[n, *a] for n, a in zip(names, amounts, strict=True)])
    for label, found in by_evidence(facts).items():
        screen.say(f"{label}: {found}.", "dim")


def _amounts(row: Mapping[str, Any]) -> list[str]:
    kinds = ("flops", "weight_bytes", "state_bytes", "activation_bytes", "comm_bytes")
    return [amount(row[kind]) for kind in kinds]


def _intensity(totals: Mapping[str, Any]) -> float | None:
    moved = totals["weight_bytes"] + totals["state_bytes"] + totals["activation_bytes"]
    return totals["flops"] / moved if moved else None


def _precision(screen: Screen, facts: Mapping[str, Any]) -> None:
    if not facts["precision"]:
        return
    screen.heading("Number formats below 16 bits")
    heads = ["", "bits", "multiplied in", "unpacking", "16 bits faster from"]
    screen.table(heads, precision_cells(facts), left=("multiplied in",))
    for text in quality_lines(facts):
        screen.say(text, "dim")


def _accounts(screen: Screen, facts: Mapping[str, Any]) -> None:
    screen.heading("GPU time by account")
    total = sum(facts["accounts_s"].values())
    found = [(name, seconds) for name, seconds in facts["accounts_s"].items() if seconds]
    rows = [[account(name), duration(s), percent(s / total)] for name, s in found]
    screen.table(["", "time", "share"], rows, [seconds / total for _, seconds in found])


def _host(screen: Screen, facts: Mapping[str, Any]) -> None:
    screen.heading("The host's part of the step")
    screen.fact_list([(name, duration(s), "") for name, s in facts["host_s"].items()])
    mode = "with async scheduling: the slower of GPU and host counts"
    if not facts["async_scheduling"]:
        mode = "without async scheduling: the host's work stands between steps"
    screen.say(f"From step to step {duration(facts['step_s'])}, {mode}.")


def _constants(screen: Screen, facts: Mapping[str, Any]) -> None:
    screen.heading("Constants behind it")
    rows = [
        [
            row["constant"],
            duration(row["value"]) if row["constant"].endswith("_s") else f"{row['value']:.4g}",
            percent(row["share"]),
            row["label"],
        ]
        for row in facts["constants"]
    ]
    screen.table(["", "value", "of GPU time", "evidence"], rows, left=("evidence",))
    for source in dict.fromkeys(f"{row['label']}: {row['source']}" for row in facts["constants"]):
        screen.say(source, "dim")
    peaks = ", ".join(
        f"{PEAK_NAMES[peak]} {significant(value / 1e12)} TFLOP/s"
        for peak, value in facts["peaks_flop_per_s"].items()
    )
    screen.say(
        f"They scale the datasheet: {peaks}, {significant(facts['hbm_bytes_per_s'] / 1e12)} TB/s.",
        "dim",
    )
