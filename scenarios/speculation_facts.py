"""What a run drafted, and what came of it: figures, and the facts of the speculation ledger."""

from __future__ import annotations

from typing import Any, NamedTuple

from costmodels.drafting.drafters import method_facts
from scenarios.build import Build
from sim.accounts import SPECULATION_DRAFT, SPECULATION_WASTE
from sim.fleet.cluster import RunLog


class _Counts(NamedTuple):
    rounds: int
    """Decode steps, each sequence's counted."""
    drafted: int
    accepted: int


def speculation_figures(log: RunLog, build: Build) -> list[dict[str, Any]]:
    """Mean tokens a decode step gives a sequence, and how many drafts are accepted."""
    parts = [part for part in build.parts if part.speculating is not None]
    counts = _counts(log)
    if not parts or not counts.rounds:
        return []
    label = parts[0].speculating.acceptance.label if parts[0].speculating else None

    def figure(name: str, value: float | None, unit: str, over: str, count: int) -> dict[str, Any]:
        return {
            "name": name,
            "statistic": "value",
            "value": value,
            "unit": unit,
            "population": over,
            "count": count,
            "evidence": label,
        }

    rounds, drafted, accepted = counts
    rate = accepted / drafted if drafted else None
    return [
        figure(
            "accepted_length",
            (rounds + accepted) / rounds,
            "tokens",
            "decode steps of sequences, the target's own token included",
            rounds,
        ),
        figure("acceptance_rate", rate, "fraction", "drafted tokens", drafted),
    ]


def speculation_facts(
    build: Build, log: RunLog, step_accounts_s: dict[str, float]
) -> dict[str, Any] | None:
    """The method, what it keeps of the target, and the ledger: its part of the GPU's time."""
    speculating = next((p.speculating for p in build.parts if p.speculating is not None), None)
    if speculating is None:
        return None
    facts = method_facts(speculating.drafter.method)
    busy_s = sum(step_accounts_s.values())
    draft_s, waste_s = step_accounts_s[SPECULATION_DRAFT], step_accounts_s[SPECULATION_WASTE]
    rounds, drafted, accepted = _counts(log)
    return {
        "method": speculating.drafter.method,
        "title": facts.title,
        "drafts_by_seqs": dict(speculating.speculation.drafts_by_seqs),
        "tree_nodes": len(speculating.drafter.tree) if speculating.drafter.tree else None,
        "acceptance": {
            "label": speculating.acceptance.label,
            "source": speculating.acceptance.source,
        },
        "keeps_target_distribution": {
            "value": facts.keeps_target,
            "label": "reported",
            "source": facts.keeps_source,
        },
        "decode_steps": rounds,
        "drafted_tokens": drafted,
        "accepted_tokens": accepted,
        "draft_share": draft_s / busy_s if busy_s else None,
        "waste_share": waste_s / busy_s if busy_s else None,
        "ledger": {
            "use": (draft_s + waste_s) / busy_s if busy_s else None,
            "budget": None,
            "unit": "share of GPU time",
        },
    }


def _counts(log: RunLog) -> _Counts:
    rounds = drafted = accepted = 0
    for steps in log.steps:
        if not steps.speculates:
            continue
        for columns in steps.chunks():
            rounds += int((columns["steps"] * columns["decode_seqs"]).sum())
            drafted += int((columns["steps"] * columns["draft_tokens"]).sum())
            accepted += int(columns["accepted_tokens"].sum())
    return _Counts(rounds, drafted, accepted)
