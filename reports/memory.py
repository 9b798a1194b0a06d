"""Terminal text of ``fleetcast memory``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.numbers import byte_size, gpus_text, percent
from reports.terminal import Screen

_GROUPS = ("weights", "state", "workspace", "links", "unused")


def print_memory(facts: Mapping[str, Any], screen: Screen | None = None) -> None:
    """Print the facts returned by ``scenarios.memory_command``."""
    screen = screen or Screen()
    screen.say(_answer(facts), "bold")
    _device(screen, facts)
    _beside(screen, facts)
    if not facts["missing_bytes"]:
        _schemes(screen, facts)
        _lengths(screen, facts)
    if facts["missing_bytes"] or not facts["schemes"][-1]["sequences"]:
        _layouts(screen, facts)
    screen.say("")
    for note in facts["notes"]:
        screen.say(f"{note}.", "dim")
    source = facts["evidence"]
    screen.say(
        f"{facts['model']} on {gpus_text(facts)} · weights "
        f"{facts['weights']} · KV {facts['kv_dtype']} · "
        f"{facts['engine']}, gpu_memory_utilization {facts['gpu_memory_utilization']:g}, blocks of "
        f"{facts['block_size']} · device memory: {source['label']}, {source['source']}",
        "dim",
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


def _device(screen: Screen, facts: Mapping[str, Any]) -> None:
    screen.heading("What fills the device (one rank)")
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
    rows.append(["device", "", "", byte_size(total), "100%"])
    screen.table(["", "what", "format", "bytes", "share"], rows, left=("what", "format"))
    state = f"{facts['growing_state_bytes_per_token']:,.6g} bytes a token"
    if facts["fixed_state_bytes_per_sequence"]:
        fixed = byte_size(facts["fixed_state_bytes_per_sequence"])
        state += f", and up to {fixed} a sequence that does not grow"
    wasted = byte_size(facts["fragmentation_bytes_per_sequence"])
    screen.say(
        f"State on this rank: {state}. Blocks of a sequence hold {wasted} beyond its tokens, mean "
        "over lengths.",
        "dim",
    )


def _beside(screen: Screen, facts: Mapping[str, Any]) -> None:
    if not facts["beside_bytes"]:
        return
    screen.heading("Beside the device, streamed every step")
    rows = [[what, byte_size(size)] for what, size in facts["beside_bytes"].items()]
    screen.table(["", "bytes"], rows)


def _schemes(screen: Screen, facts: Mapping[str, Any]) -> None:
    screen.heading(
        f"How memory is set aside: {facts['context']:,} prompt + {facts['output']:,} output tokens"
    )
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
    screen.table(
        ["", "slots", "bytes", "fit", "mean", "used", "later", "wasted"],
        rows,
    )
    screen.say(
        "fit: sequences that can all reach their end; mean: with answers at all stages. Shares are "
        "of what is set aside, mean over an answer. Orca Max sets aside max_model_len "
        f"{facts['max_model_len']:,}, Pow2 rounds the output up to a power of two, Oracle knows "
        "it; paged takes a block when it is needed. wasted: contiguous memory never filled, "
        "and room in blocks beyond their tokens.",
        "dim",
    )


def _lengths(screen: Screen, facts: Mapping[str, Any]) -> None:
    screen.heading("Sequences that fit, by length")
    schemes = [row["scheme"] for row in facts["schemes"]]
    rows = []
    for row in facts["lengths"]:
        counts = [f"{row['sequences'][scheme]:,}" for scheme in schemes]
        rows.append(
            [
                f"{row['context']:,} + {row['output']:,}",
                byte_size(row["sequence_bytes"]),
                *counts,
                f"{row['paged_mean_sequences']:,}",
                percent(row["paged_used"]),
            ]
        )
    short = [scheme.removeprefix("Orca ") for scheme in schemes]
    screen.table(["length", "state", *short, "mean", "used"], rows)


def _layouts(screen: Screen, facts: Mapping[str, Any]) -> None:
    screen.heading(f"What fits on {facts['gpu']}")
    rows = [
        [
            layout["weights"],
            str(layout["tensor_parallel_size"] or "none"),
            f"{layout['sequences']:,}",
        ]
        for layout in facts["layouts"]
    ]
    screen.table(["weights", "smallest TP", "sequences"], rows)
