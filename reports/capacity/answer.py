"""Sentences that answer a capacity search, and how it writes loads and targets."""

from __future__ import annotations

from typing import Any

from reports.numbers import (
    LATENCY_LABELS,
    is_number,
    percent,
    share_text,
    significant,
    target,
    target_label,
    whole_percent,
)

Content = dict[str, Any]
"""Content of capacity.json."""


def heading(content: Content) -> str:
    """Name the system: its model and its GPUs."""
    conditions = content["conditions"]
    return (
        f"{conditions['model']} on {conditions['gpus']} \N{MULTIPLICATION SIGN} {conditions['gpu']}"
    )


def headline(content: Content) -> str:
    """Give the answer in one sentence."""
    question, answer, rows = content["question"], content["answer"], content["curve"]
    wanted = question["attainment"]
    slo = f"the SLO ({targets_text(content)})" if question["targets"] else ""
    limit = answer["limit"]
    if limit == "none met":
        met = percent(rows[0]["attainment"] or 0.0)
        return (
            f"No load keeps {share_text(wanted)} of requests within {slo}: at "
            f"{amount(content, rows[0]['level'])}, the lightest tried, {met} are."
        )
    if limit == "none found":
        return (
            f"No limit was found: at {amount(content, answer['at_least'])}, the most tried, "
            f"{percent(rows[-1]['attainment'] or 0.0)} of requests meet {slo}."
        )
    most = amount(content, answer["capacity"])
    if wanted is None:
        return f"Up to {most} the queue stays; beyond, it grows for as long as requests come."
    if limit == "stability":
        return (
            f"Up to {most}: there {share_text(wanted)} of requests still meet {slo}; beyond, the "
            "queue grows for as long as requests come."
        )
    return f"Up to {most}, {share_text(wanted)} of requests meet {slo}."


def certainty(content: Content) -> str:
    """Say how certain the answer is; empty if no capacity was found."""
    answer = content["answer"]
    if answer["capacity"] is None:
        return ""
    low, high = (level_text(content, x) for x in answer["interval"])
    if answer["precision"] == 0:
        parts = ["The same in every replication"]
    elif answer["fixed"]:
        parts = [f"For these requests; {low} to {high} as parts of the trace differ (95%)"]
    else:
        parts = [f"{low} to {high} by sampling (95%, ±{_plus_minus(answer['precision'])})"]
    if answer["model_error"]:
        low, high = (level_text(content, x) for x in answer["model_error"]["interval"])
        parts.append(f"{low} to {high} by what the model may be off (90%)")
    return f"{'; '.join(parts)}."


def distance(content: Content) -> str:
    """Say how far the capacity is from saturation, and how much it is per GPU."""
    answer, parts = content["answer"], []
    if answer["capacity"] is None:
        return ""
    if is_number(answer["of_saturation"]):
        parts.append(
            f"{whole_percent(answer['of_saturation'])} of saturation "
            f"({significant(answer['saturation_per_s'])} requests/s)"
        )
    if answer["gpus"] > 1:
        parts.append(f"{significant(answer['per_gpu'])} {content['question']['unit']} a GPU")
    return f"That is {'; '.join(parts)}." if parts else ""


def wanted_lines(content: Content) -> list[str]:
    """Say what the wanted load needs, and what simulating it found."""
    wanted = content["wanted"]
    if not wanted:
        return []
    needs = (
        f"{wanted['level']:g} {content['question']['unit']} need {_replicas(wanted['replicas'])}"
    )
    if wanted["gpus"] != wanted["replicas"]:
        needs += f" ({wanted['gpus']:,} GPUs)"
    if wanted["replicas_at_interval"] > wanted["replicas"]:
        needs += f", or {wanted['replicas_at_interval']:,} at the interval's low end"
    lines = [f"{needs}, if {wanted['assumes']}."]
    if wanted["checks"]:
        lines.append(f"Simulated: {'; '.join(_check_text(one) for one in wanted['checks'])}.")
    return lines


def _check_text(check: dict[str, Any]) -> str:
    says = "keep it" if check["kept"] else "miss it"
    if not check["stable"]:
        says = "cannot keep up"
    low, high = (share_text(x) for x in check["interval"])
    return (
        f"{_replicas(check['replicas'])} {says}, {share_text(check['attainment'])} of requests "
        f"({low} to {high})"
    )


def _plus_minus(precision: float) -> str:
    return f"{precision:.1%}" if precision >= 0.0005 else "0%"


def _replicas(count: int) -> str:
    return "1 replica" if count == 1 else f"{count:,} replicas"


def targets_text(content: Content) -> str:
    """Write the latency targets: ``TTFT ≤ 500 ms, TPOT ≤ 20 ms``."""
    targets, itl_of = content["question"]["targets"], content["question"].get("itl_of")
    return ", ".join(
        f"{target_label(name, itl_of)} ≤ {target(value)}" for name, value in targets.items()
    )


def amount(content: Content, level: float) -> str:
    """Write a load with its unit."""
    return f"{level_text(content, level)} {content['question']['unit']}"


def level_text(content: Content, level: float) -> str:
    """Write a load without its unit: users as a whole number, a rate in three digits."""
    if content["question"]["vary"] in ("users", "max_concurrency"):
        return f"{level:,.0f}"
    return significant(level)


def tail_text(content: Content) -> str:
    """Name the metric and the requests that the accounts cover."""
    metric = content["binding"]["metric"]
    wanted = content["question"]["attainment"]
    slowest = "requests" if wanted is None else f"the slowest {share_text(1 - wanted)}"
    return f"{LATENCY_LABELS.get(metric, metric)} of {slowest}"
