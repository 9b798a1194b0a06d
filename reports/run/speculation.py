"""Sentences about speculation in a run, for the terminal and the page."""

from __future__ import annotations

from reports.facts import Summary, section, value_of
from reports.numbers import is_number, percent, significant


def speculation_text(summary: Summary) -> str:
    """Say what was drafted, what was accepted, and what it cost; empty without speculation."""
    facts = section(summary, "speculation")
    if not facts:
        return ""
    drafts = sorted(set(section(facts, "drafts_by_seqs").values()))
    if not drafts:
        return ""
    number = f"{drafts[0]} to {drafts[-1]}" if len(drafts) > 1 else f"{drafts[0]}"
    nodes = " in a tree" if facts.get("tree_nodes") else ""
    parts = [f"Speculation by {facts['method']}, {number} drafted tokens{nodes} a step"]
    length, rate = value_of(summary, "accepted_length"), value_of(summary, "acceptance_rate")
    if length is not None:
        parts.append(f"{significant(length)} tokens a step and sequence")
    if rate is not None:
        parts.append(f"{percent(rate)} of the drafts accepted")
    said = ", ".join(parts)
    draft, waste = facts.get("draft_share"), facts.get("waste_share")
    if is_number(draft) and is_number(waste):
        said += f"; drafting takes {percent(draft)} of the GPUs' time, rejected work "
        said += percent(waste)
    kept, accepted = section(facts, "keeps_target_distribution"), section(facts, "acceptance")
    said += f". Keeps the target's distribution: {kept.get('value')} ({kept.get('source')})."
    return f"{said} Acceptance is {accepted.get('label')}: {accepted.get('source')}."
