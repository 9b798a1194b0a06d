"""Read the summary of a run: its sections, figures, accounts, evidence and warnings."""

from __future__ import annotations

from typing import Any, NamedTuple

from reports.numbers import MISSING, humanised, is_number, sentence
from reports.warning_codes import GRAVE
from sim.evidence import LABELS

Summary = dict[str, Any]


CONDITION_LABELS = {
    "model": "Model",
    "gpu": "GPU",
    "gpus": "GPUs in all",
    "replicas": "Replicas",
    "tensor_parallel_size": "Tensor parallel size",
    "pipeline_parallel_size": "Pipeline parallel size",
    "data_parallel_size": "Data parallel size",
    "prefill_context_parallel_size": "Prefill context parallel size",
    "decode_context_parallel_size": "Decode context parallel size",
    "expert_parallel_size": "Expert parallel size",
    "engine": "Engine",
    "scheduler": "Scheduler",
    "router": "Router",
    "workload": "Workload",
    "cost_model": "Cost model",
    "calibration_sha256": "Calibration (SHA-256)",
    "seed": "Seed",
}
"""Conditions that are written in words; engine options keep the names the engine knows them by."""


class AccountRow(NamedTuple):
    """Seconds of one time account, and its share of the total."""

    account: str
    label: str
    seconds: float
    share: float


def section(summary: Summary, *keys: str) -> dict[str, Any]:
    """Return a nested object of the summary, or an empty one if it is absent or null."""
    value: Any = summary
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def entries(summary: Summary, key: str) -> list[Any]:
    """Return a list of the summary, or an empty one if it is absent or null."""
    value = summary.get(key)
    return value if isinstance(value, list) else []


def figures_by_name(summary: Summary) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the figures as name -> statistic -> figure, in the order of the summary."""
    by_name: dict[str, dict[str, dict[str, Any]]] = {}
    for figure in entries(summary, "figures"):
        statistic = str(figure.get("statistic") or "value")
        by_name.setdefault(figure["name"], {})[statistic] = figure
    return by_name


def value_of(summary: Summary, name: str, *statistics: str) -> float | None:
    """Return the first of the given statistics of a figure that is a finite number, else None."""
    figures = figures_by_name(summary).get(name, {})
    for statistic in statistics or ("value", "mean"):
        value = figures.get(statistic, {}).get("value")
        if is_number(value):
            return value
    return None


def weakest_evidence(figures: list[dict[str, Any]]) -> str:
    """Return the weakest evidence label of the figures. A label that is not in ``LABELS`` ranks
    below all others."""
    labels = [str(figure["evidence"]) for figure in figures if figure.get("evidence")]
    rank = {label: index for index, label in enumerate(LABELS)}
    return max(labels, key=lambda label: rank.get(label, len(rank)), default=MISSING)


def account_rows(summary: Summary, key: str) -> list[AccountRow]:
    """Return the non-zero accounts of e.g. ``e2e_accounts_s`` or ``step_accounts_s``, in the
    order of the summary."""
    seconds = {
        account: value
        for account, value in section(summary, key).items()
        if is_number(value) and value != 0
    }
    total_s = sum(seconds.values())
    if total_s <= 0:
        return []
    return [
        AccountRow(account, humanised(account), value, value / total_s)
        for account, value in seconds.items()
    ]


def evidence_shares(summary: Summary) -> list[tuple[str, float]]:
    """Return the share of simulated time by evidence label, strongest label first."""
    rank = {label: index for index, label in enumerate(LABELS)}
    shares = [
        (label, share)
        for label, share in section(summary, "evidence").items()
        if is_number(share) and share > 0
    ]
    return sorted(shares, key=lambda item: rank.get(item[0], len(rank)))


def warning_texts(summary: Summary, *, grave: bool | None = None) -> list[str]:
    """Return the warnings as sentences, in the order given. ``grave`` selects only those whose
    code is, or is not, in ``GRAVE``."""
    texts = (
        str(warning.get("text") or warning.get("code") or "")
        for warning in entries(summary, "warnings")
        if isinstance(warning, dict) and grave in (None, warning.get("code") in GRAVE)
    )
    return [sentence(text) for text in texts if text]
