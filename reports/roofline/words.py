"""How the figures of an explained step are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.words import MISSING, gpus_text, significant

_PREFIXES = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
PEAK_NAMES = {
    "bf16_flop_per_s": "bf16",
    "fp8_flop_per_s": "fp8",
    "int8_op_per_s": "int8",
    "fp4_flop_per_s": "fp4",
    "int4_op_per_s": "int4",
}


def amount(value: float) -> str:
    """A count of FLOPs or bytes with a decimal prefix: 68.7 G; a dash for none."""
    if not value:
        return MISSING
    for prefix, size in _PREFIXES:
        if value >= size:
            return f"{significant(value / size)} {prefix}"
    return significant(value)


def intensity(value: float | None) -> str:
    """FLOPs a byte."""
    if value is None or value == 0:
        return MISSING
    return significant(value, 2) if value < 100 else f"{value:,.0f}"


def account(name: str) -> str:
    """An account in words."""
    return name.replace("_", " ")


def step_text(facts: Mapping[str, Any]) -> str:
    """What the step does: ``64 decodes of 2,000 tokens and a chunk of 512 after 100``."""
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
    """The set-up in one line."""
    return (
        f"{facts['model']} on {gpus_text(facts)} · weights {facts['weights']} · "
        f"KV {facts['kv_dtype']} · {facts['engine']}"
    )


def answer_text(facts: Mapping[str, Any]) -> str:
    """What the step takes, and what binds it."""
    from reports.words import duration, percent

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
    """The names of the operators that carry each label."""
    found: dict[str, list[str]] = {}
    for row in facts["operators"]:
        found.setdefault(row["evidence"], []).append(row["name"])
    return {label: ", ".join(names) for label, names in found.items()}


def precision_cells(facts: Mapping[str, Any]) -> list[list[str]]:
    """Formats below 16 bits: stored, bits, unit, unpacking, and from where 16 bits are faster."""
    from reports.words import duration

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
    """What quantisation does to answers, as others report it; a gap is said to be one."""
    lines = []
    for method in facts["quality"]:
        reported = [f"{found['effect']} ({found['source']})" for found in method["reported"]]
        told = "; ".join(reported) or "not known here"
        lines.append(f"What {method['method']} does to answers: {told}.")
    return lines
