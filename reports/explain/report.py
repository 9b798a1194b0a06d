"""The report of one explained step, section by section."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from reports.document import (
    ANY_WIDTH,
    Block,
    Cell,
    Column,
    Fact,
    Facts,
    Figure,
    Report,
    Row,
    Section,
    Table,
    Text,
    Tile,
    numbers,
)
from reports.explain.roofline import PEAK_NAMES, amount, roofline
from reports.numbers import MISSING, duration, gpus_text, percent, significant

# Least width of a terminal for a single table of operators; narrower ones get two.
_WIDE = 128
_AMOUNTS = {
    "flops": Column("FLOP", "number"),
    "weight_bytes": Column("Weights", "number"),
    "state_bytes": Column("State", "number"),
    "activation_bytes": Column("Activations", "number", terminal="activ."),
    "comm_bytes": Column("Communication", "number", terminal="comm."),
}


def write_explain_page(facts: Mapping[str, Any], path: Path) -> Path:
    """Write the page and return its path. Raises `ScenarioError` if the file cannot be written."""
    from reports.html import save_page

    return save_page(explain_report(facts), path)


def explain_report(facts: Mapping[str, Any]) -> Report:
    """Return the report of the facts that ``fleetcast explain --format json`` prints."""
    figure = Figure(partial(roofline, facts), _by(facts, "evidence"))
    return Report(
        eyebrow="One engine step, explained",
        heading=step_text(facts),
        headline=answer_text(facts),
        sentences=[Text(system_text(facts), on="page")],
        tiles=_tiles(facts),
        sections=[
            Section("roofline", "Where the operators stand", [figure], on="page"),
            _operators(facts),
            _precision(facts),
            _accounts(facts),
            _host(facts),
            _constants(facts),
        ],
        closing=[*(f"{note}." for note in facts["notes"]), system_text(facts)],
        version=facts["fleetcast_version"],
        width=160,
        pipe_width=None,
    )


def step_text(facts: Mapping[str, Any]) -> str:
    """Describe the step: ``64 decodes of 2,000 tokens and a chunk of 512 after 100``."""
    step = facts["step"]
    parts = []
    if step["decode_seqs"]:
        parts.append(f"{step['decode_seqs']:,} decodes of {step['context']:,} tokens of context")
    if step["prefill_tokens"]:
        after = f" after {step['prefill_context']:,}" if step["prefill_context"] else ""
        parts.append(f"a prompt chunk of {step['prefill_tokens']:,} tokens{after}")
    text = " and ".join(parts)
    ours = step.get("rank_decode_seqs", 0), step.get("rank_prefill_tokens", 0)
    if ours == (step["decode_seqs"], step["prefill_tokens"]):
        return text
    return f"{text}; of these {ours[0]:,} decodes and {ours[1]:,} tokens of prompt on this rank"


def system_text(facts: Mapping[str, Any]) -> str:
    """Describe the system in one line."""
    return (
        f"{facts['model']} on {gpus_text(facts)} · weights {facts['weights']} · "
        f"KV {facts['kv_dtype']} · {facts['engine']}"
    )


def answer_text(facts: Mapping[str, Any]) -> str:
    """Say how long the step takes and what bounds it."""
    gpu_s = facts["totals"]["seconds"]
    bound, bound_s = next(iter(facts["bounds_s"].items()))
    text = (
        f"The step takes {duration(gpu_s)} on the GPU; {percent(bound_s / gpu_s)} of that is bound "
        f"by {bound}."
    )
    if facts["gpus"] > facts["tensor_parallel_size"]:
        text = (
            f"A step of all {facts['gpus']} GPUs takes {duration(facts['replica_s'])}; listed is "
            f"what the busiest rank takes for one micro-batch, {duration(gpu_s)}, "
            f"{percent(bound_s / gpu_s)} of it bound by {bound}."
        )
    if facts["bound_by"] == "host":
        text += f" With the host's work a step follows every {duration(facts['step_s'])}."
    return text


def _tiles(facts: Mapping[str, Any]) -> list[Tile]:
    totals = facts["totals"]
    gpu_s, moved = totals["seconds"], _moved_bytes(totals)
    peak = facts["peaks_flop_per_s"]["bf16_flop_per_s"]
    bandwidth = percent(moved / gpu_s / facts["hbm_bytes_per_s"])
    flops = f"{amount(totals['flops'])}FLOP"
    return [
        Tile("GPU time", duration(gpu_s), "one rank"),
        Tile("From step to step", duration(facts["step_s"]), f"bound by the {facts['bound_by']}"),
        Tile("Memory bandwidth", bandwidth, f"{amount(moved)}B moved"),
        Tile("bf16 peak", percent(totals["flops"] / gpu_s / peak), flops),
    ]


def _by(facts: Mapping[str, Any], column: str) -> dict[str, str]:
    """Return the operators' names by what a column says of them, where it says anything."""
    found: dict[str, list[str]] = {}
    for row in facts["operators"]:
        if row[column]:
            found.setdefault(row[column], []).append(row["name"])
    return {value: ", ".join(names) for value, names in found.items()}


def _operators(facts: Mapping[str, Any]) -> Section:
    rows, total = facts["operators"], {**facts["totals"], "name": "all", "share": 1.0}
    name = [Column("Operator", terminal="")]
    times = numbers("Calls", "Time", "Share")
    words = [
        Column("Kernel", "note", on="page"),
        Column("Bound by", on="page"),
        Column("Bound by", on="terminal"),
        Column("Accounts", "note", on="page"),
        Column("Account", on="terminal"),
    ]
    amounts = [*_AMOUNTS.values(), Column("FLOP/byte", "number", terminal="FLOP/B")]
    evidence = [Column("Evidence", "evidence")]
    wide = Table(
        [*name, *times, *amounts, *words, *evidence],
        [[*_times(row), *_amounts(row), *_words(row), row["evidence"]] for row in rows],
        total=[*_times(total), *_amounts(total), *[""] * 6],
        on="terminal",
        widths=(_WIDE, ANY_WIDTH[1]),
    )
    narrow = Table(
        [*name, *times, *words, Column("Evidence", "evidence", on="page")],
        [[*_times(row), *_words(row), row["evidence"]] for row in rows],
        total=[*_times(total), *[""] * 6],
        widths=(0, _WIDE - 1),
    )
    narrow_amounts = Table(
        [*name, *amounts],
        [[row["name"], *_amounts(row)] for row in rows],
        title="What they compute and move",
        terminal="",
        total=["all", *_amounts(total)],
        widths=(0, _WIDE - 1),
    )
    labels = (f"{label}: {names}." for label, names in _by(facts, "evidence").items())
    kernels = "; ".join(f"{names} on {kernel}" for kernel, names in _by(facts, "kernel").items())
    ridge = ", ".join(
        f"{PEAK_NAMES[peak]} {value:,.0f}" for peak, value in facts["ridge_flops_per_byte"].items()
    )
    return Section(
        "operators",
        "Operators, one rank",
        [
            wide,
            narrow,
            narrow_amounts,
            *(Text(text, "note", "terminal", (0, _WIDE - 1)) for text in labels),
            *([Text(f"Kernels: {kernels}.", "note", "terminal")] if kernels else []),
            Text("All calls of an operator together.", "note", on="page"),
            Text(
                "Bytes are of device memory, in decimal units (comm.: over the links). Compute and "
                f"memory take equally long at so many FLOPs a byte: {ridge}.",
                "note",
            ),
            *(Text(f"{note}.", "note", on="page") for note in facts["notes"]),
        ],
        terminal=f"Operators of one step on one rank: {step_text(facts)}",
    )


def _times(row: Mapping[str, Any]) -> list[str]:
    return [row["name"], f"{row['calls']:,}", duration(row["seconds"]), percent(row["share"])]


def _words(row: Mapping[str, Any]) -> list[str]:
    """Return an operator's kernel, then what bounds it and its accounts, each for the page and the
    terminal."""
    accounts = [_account(name) for name in row["accounts"]]
    bound = row["bound"]
    unit = f"compute ({PEAK_NAMES[row['peak']]})" if bound == "compute" else bound
    return [row["kernel"], unit, bound, ", ".join(accounts), next(iter(accounts), "")]


def _amounts(row: Mapping[str, Any]) -> list[str]:
    """Return the FLOPs and bytes of an operator, or of all operators together, as texts."""
    moved = _moved_bytes(row)
    intensity = row["intensity"] if "intensity" in row else moved and row["flops"] / moved
    return [*(amount(row[kind]) for kind in _AMOUNTS), _intensity(intensity)]


def _moved_bytes(row: Mapping[str, Any]) -> float:
    return float(row["weight_bytes"] + row["state_bytes"] + row["activation_bytes"])


def _intensity(value: float | None) -> str:
    """Write an arithmetic intensity in FLOPs per byte."""
    if not value:
        return MISSING
    return significant(value, 2) if value < 100 else f"{value:,.0f}"


def _account(name: str) -> str:
    return name.replace("_", " ")


def _precision(facts: Mapping[str, Any]) -> Section:
    """Return the formats below 16 bits, and what quantization does to answers as reported by
    others."""
    rows = [
        [
            f"{row['part']}: {row['stored']}",
            f"{row['bits']:.4g}",
            PEAK_NAMES.get(row["unit"], MISSING),
            MISSING if row["unpack_s"] is None else duration(row["unpack_s"]),
            MISSING if row["crossover_rows"] is None else f"{row['crossover_rows']:,} tokens",
        ]
        for row in facts["precision"]
    ]
    if not rows:
        return Section("formats", "", [])
    blocks: list[Block] = [
        Table(
            [
                Column("Number format", terminal=""),
                *numbers("Bits"),
                Column("Multiplied in"),
                *numbers("Unpacking", "16 bits faster from"),
            ],
            rows,
        )
    ]
    for method in facts["quality"]:
        reported = [f"{found['effect']} ({found['source']})" for found in method["reported"]]
        told = "; ".join(reported) or "not known here"
        blocks.append(Text(f"What {method['method']} does to answers: {told}.", "note"))
    return Section("formats", "Number formats below 16 bits", blocks)


def _accounts(facts: Mapping[str, Any]) -> Section:
    total_s = sum(facts["accounts_s"].values())
    rows: list[Row] = [
        [_account(name), duration(s), percent(s / total_s), Cell("", share=s / total_s)]
        for name, s in facts["accounts_s"].items()
        if s
    ]
    columns = [Column("Account", terminal=""), *numbers("Time", "Share"), Column("", "bar")]
    return Section("accounts", "GPU time by account", [Table(columns, rows)])


def _host(facts: Mapping[str, Any]) -> Section:
    mode = "with async scheduling: the slower of GPU and host counts"
    if not facts["async_scheduling"]:
        mode = "without async scheduling: the host's work stands between steps"
    return Section(
        "host",
        "The host's part of the step",
        [
            Facts([Fact(name, duration(seconds)) for name, seconds in facts["host_s"].items()]),
            Text(f"From step to step {duration(facts['step_s'])}, {mode}."),
        ],
    )


def _constants(facts: Mapping[str, Any]) -> Section:
    constants = facts["constants"]
    rows = [
        [
            row["constant"],
            duration(row["value"]) if row["constant"].endswith("_s") else f"{row['value']:.4g}",
            percent(row["share"]),
            row["label"],
            row["source"],
        ]
        for row in constants
    ]
    columns = [
        Column("Constant", terminal=""),
        *numbers("Value"),
        Column("Of GPU time", "number"),
        Column("Evidence", "evidence"),
        Column("Source", "note", on="page"),
    ]
    sources = dict.fromkeys(f"{row['label']}: {row['source']}" for row in constants)
    peaks = ", ".join(
        f"{PEAK_NAMES[peak]} {significant(value / 1e12)} TFLOP/s"
        for peak, value in facts["peaks_flop_per_s"].items()
    )
    bandwidth = f"{significant(facts['hbm_bytes_per_s'] / 1e12)} TB/s"
    return Section(
        "constants",
        "Constants behind it",
        [
            Table(columns, rows),
            *(Text(source, "note", on="terminal") for source in sources),
            Text(f"They scale the datasheet: {peaks}, {bandwidth}.", "note"),
        ],
    )
