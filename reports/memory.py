"""The report of a device's memory: what fills it, and how many sequences fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.document import Column, Report, Section, Table, Text, numbers
from reports.numbers import byte_size, gpus_text, percent
from sim import __version__

_GROUPS = ("weights", "state", "workspace", "links", "unused")


def memory_report(facts: Mapping[str, Any]) -> Report:
    """Return the report of the facts that ``fleetcast memory --format json`` prints."""
    fits = not facts["missing_bytes"]
    return Report(
        eyebrow="Device memory",
        heading=f"{facts['model']} on {gpus_text(facts)}",
        headline=_answer(facts),
        sections=[
            _device(facts),
            *([_log(facts)] if facts["startup_log"] else []),
            _beside(facts),
            *([_schemes(facts), _lengths(facts)] if fits else []),
            *([] if fits and facts["schemes"][-1]["sequences"] else [_layouts(facts)]),
        ],
        closing=[*(f"{note}." for note in facts["notes"]), _conditions(facts)],
        version=__version__,
        pipe_width=None,
    )


def _conditions(facts: Mapping[str, Any]) -> str:
    source, params = facts["evidence"], f"{facts['total_params'] / 1e9:,.3g}B parameters"
    if facts["active_params"] < 0.97 * facts["total_params"]:
        params += f", {facts['active_params'] / 1e9:,.3g}B active"
    return (
        f"{facts['model']} ({params}) on {gpus_text(facts)} · weights "
        f"{facts['weights']} · KV {facts['kv_dtype']} · "
        f"{facts['engine']}, gpu_memory_utilization {facts['gpu_memory_utilization']:g}, blocks of "
        f"{facts['block_size']} · device memory: {source['label']}, {source['source']}"
    )


def _answer(facts: Mapping[str, Any]) -> str:
    lengths = f"{facts['context']:,} + {facts['output']:,} tokens"
    if facts["missing_bytes"]:
        return (
            f"It does not fit: weights and workspace need {byte_size(facts['missing_bytes'])} more "
            f"than {facts['gpu_memory_utilization']:.0%} of the device."
        )
    paged = facts["schemes"][-1]
    if not paged["sequences"]:
        return (
            f"The weights fit, but not one sequence of {lengths}: it needs "
            f"{byte_size(paged['sequence_bytes'])}, the pool has {byte_size(facts['pool_bytes'])}."
        )
    where = " of each data-parallel rank" if facts["data_parallel_size"] > 1 else ""
    return (
        f"{paged['sequences']:,} sequences of {lengths} fit at once in blocks{where}; "
        f"{paged['mean_sequences']:,} when their answers are at all stages."
    )


def _device(facts: Mapping[str, Any]) -> Section:
    total = facts["device_bytes"]
    entries = [entry for entry in facts["entries"] if entry["num_bytes"]]
    rows = [
        [
            entry["group"],
            entry["what"],
            entry["format"],
            byte_size(entry["num_bytes"]),
            percent(entry["num_bytes"] / total),
        ]
        for group in _GROUPS
        for entry in entries
        if entry["group"] == group
    ]
    state = f"{facts['growing_state_bytes_per_token']:,.6g} bytes a token"
    if facts["fixed_state_bytes_per_sequence"]:
        fixed = byte_size(facts["fixed_state_bytes_per_sequence"])
        state += f", and up to {fixed} a sequence that does not grow"
    wasted = byte_size(facts["fragmentation_bytes_per_sequence"])
    return Section(
        "device",
        "What fills the device (one rank)",
        [
            Table(
                [Column(""), Column("What"), Column("Format"), *numbers("Bytes", "Share")],
                rows,
                total=["device", "", "", byte_size(total), "100%"],
            ),
            Text(
                f"State on this rank: {state}. Blocks of a sequence hold {wasted} beyond its "
                "tokens, mean over lengths.",
                "note",
            ),
        ],
    )


def _log(facts: Mapping[str, Any]) -> Section:
    rows = []
    for row in facts["startup_log"]:
        said, predicted = row["log"], row["predicted"]
        change = "" if not predicted or not said else f"{predicted / said - 1:+.1%}"
        rows.append([row["what"], row["unit"], _figure(row, said), _figure(row, predicted), change])
    columns = [Column(""), Column("Unit"), *numbers("The log", "Predicted", "Off by")]
    return Section(
        "log",
        "What the server's start-up log said",
        [
            Table(columns, rows),
            Text("Simulations take the KV cache of the log, not the predicted one.", "note"),
        ],
    )


def _figure(row: Mapping[str, Any], value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if row["unit"] == "tokens" else f"{value:,.2f}"


def _beside(facts: Mapping[str, Any]) -> Section:
    rows = [[what, byte_size(size)] for what, size in facts["beside_bytes"].items()]
    table = Table([Column(""), *numbers("Bytes")], rows)
    return Section("beside", "Beside the device, streamed every step", [table])


def _schemes(facts: Mapping[str, Any]) -> Section:
    rows = [
        [
            row["scheme"],
            f"{row['slots']:,}",
            byte_size(row["sequence_bytes"]),
            f"{row['sequences']:,}",
            f"{row['mean_sequences']:,}",
            percent(row["used"]),
            percent(row["later"]),
            percent(max(0.0, row["wasted"])),
        ]
        for row in facts["schemes"]
    ]
    headings = ("Slots", "Bytes", "Fit", "Mean", "Used", "Later", "Wasted")
    return Section(
        "schemes",
        f"How memory is set aside: {facts['context']:,} prompt + {facts['output']:,} output tokens",
        [
            Table([Column(""), *numbers(*headings)], rows),
            Text(
                "fit: sequences that can all reach their end; mean: with answers at all stages. "
                "Shares are of what is set aside, mean over an answer. Orca Max sets aside "
                f"max_model_len {facts['max_model_len']:,}, Pow2 rounds the output up to a power "
                "of two, Oracle knows it; paged takes a block when it is needed. wasted: "
                "contiguous memory never filled, and room in blocks beyond their tokens.",
                "note",
            ),
        ],
    )


def _lengths(facts: Mapping[str, Any]) -> Section:
    schemes = [row["scheme"] for row in facts["schemes"]]
    rows = [
        [
            f"{row['context']:,} + {row['output']:,}",
            byte_size(row["sequence_bytes"]),
            *(f"{row['sequences'][scheme]:,}" for scheme in schemes),
            f"{row['paged_mean_sequences']:,}",
            percent(row["paged_used"]),
        ]
        for row in facts["lengths"]
    ]
    short = (scheme.removeprefix("Orca ") for scheme in schemes)
    columns = [
        Column("Length"),
        *numbers("State"),
        *(Column(name, "number", terminal=name) for name in short),
        *numbers("Mean", "Used"),
    ]
    return Section("lengths", "Sequences that fit, by length", [Table(columns, rows)])


def _layouts(facts: Mapping[str, Any]) -> Section:
    rows = [
        [
            layout["weights"],
            str(layout["tensor_parallel_size"] or "none"),
            f"{layout['sequences']:,}",
        ]
        for layout in facts["layouts"]
    ]
    table = Table([Column("Weights"), *numbers("Smallest TP", "Sequences")], rows)
    return Section("layouts", f"What fits on {facts['gpu']}", [table])
