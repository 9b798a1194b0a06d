"""Terminal text of ``fleetcast explain``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.numbers import MISSING, duration, gpus_text, percent, significant
from reports.terminal import Screen

_PREFIXES = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
PEAK_NAMES = {
    "bf16_flop_per_s": "bf16",
    "fp8_flop_per_s": "fp8",
    "int8_op_per_s": "int8",
    "fp4_flop_per_s": "fp4",
    "int4_op_per_s": "int4",
}


def amount(value: float) -> str:
    """Write a number of FLOPs or bytes with a decimal prefix, as in 68.7 G, or a dash for zero."""
    if not value:
        return MISSING
    for prefix, size in _PREFIXES:
        if value >= size:
            return f"{significant(value / size)} {prefix}"
    return significant(value)


def intensity(value: float | None) -> str:
    """Write an arithmetic intensity in FLOPs per byte."""
    if value is None or value == 0:
        return MISSING
    return significant(value, 2) if value < 100 else f"{value:,.0f}"


def account(name: str) -> str:
    """Write an account's name as words."""
    return name.replace("_", " ")


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
    from reports.numbers import duration, percent

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


def by_evidence(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the operators that carry each evidence label."""
    found: dict[str, list[str]] = {}
    for row in facts["operators"]:
        found.setdefault(row["evidence"], []).append(row["name"])
    return {label: ", ".join(names) for label, names in found.items()}


def precision_cells(facts: Mapping[str, Any]) -> list[list[str]]:
    """Return rows of the formats below 16 bits: storage, bits, unit, unpacking, and the number
    of tokens from which 16 bits are faster."""
    from reports.numbers import duration

    return [
        [
            f"{row['part']}: {row['stored']}",
            f"{row['bits']:.4g}",
            PEAK_NAMES.get(row["unit"], MISSING),
            MISSING if row["unpack_s"] is None else duration(row["unpack_s"]),
            MISSING if row["crossover_rows"] is None else f"{row['crossover_rows']:,} tokens",
        ]
        for row in facts["precision"]
    ]


def quality_lines(facts: Mapping[str, Any]) -> list[str]:
    """Say what quantization does to answers, as reported by others, and which reports are
    missing."""
    lines = []
    for method in facts["quality"]:
        reported = [f"{found['effect']} ({found['source']})" for found in method["reported"]]
        told = "; ".join(reported) or "not known here"
        lines.append(f"What {method['method']} does to answers: {told}.")
    return lines


def amounts_of(row: Mapping[str, Any]) -> list[str]:
    """Return the FLOPs and bytes of an operator, or of all operators together, as texts."""
    kinds = ("flops", "weight_bytes", "state_bytes", "activation_bytes", "comm_bytes")
    return [amount(row[kind]) for kind in kinds]


_TIMES = ("calls", "time", "share")
_WORDS = ("bound by", "account")
_AMOUNTS = ("FLOP", "weights", "state", "activ.", "comm.", "FLOP/B")
# Least screen width for a single table; narrower screens get two.
_WIDE = 128


def print_step(facts: Mapping[str, Any], screen: Screen | None = None) -> None:
    """Print the facts returned by ``scenarios.explain_step``."""
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
    cells = [[*amounts_of(row), intensity(_intensity(row))] for row in listed]
    labels = [row["evidence"] for row in facts["operators"]]
    if screen.width >= _WIDE:
        parts = zip(names, times, cells, [*words, ["", ""]], [*labels, ""], strict=True)
        screen.table(
            ["", *_TIMES, *_AMOUNTS, *_WORDS, "evidence"],
            [[name, *time, *amount, *word, label] for name, time, amount, word, label in parts],
            left=(*_WORDS, "evidence"),
        )
        return
    rows = zip(names, times, [*words, []], strict=True)
    screen.table(["", *_TIMES, *_WORDS], [[n, *t, *w] for n, t, w in rows], left=_WORDS)
    screen.say("")
    screen.table(["", *_AMOUNTS], [[n, *a] for n, a in zip(names, cells, strict=True)])
    for label, found in by_evidence(facts).items():
        screen.say(f"{label}: {found}.", "dim")


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
