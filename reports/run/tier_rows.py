"""Prefix caches by tier: where hits came from, what was held and moved."""

from __future__ import annotations

from typing import Any

from reports.facts import Summary, entries
from reports.parts import Column
from reports.words import MISSING, is_number, percent, significant, whole_percent

COLUMNS = (
    Column("Tier"),
    Column("Hits", "n"),
    Column("Peak", "n"),
    Column("Capacity", "n"),
    Column("Loaded", "n"),
    Column("Written", "n"),
    Column("Link", "n"),
)
_NAMES = {"device": "device memory", "host": "host memory", "ssd": "disks", "remote": "remote pool"}


def tier_rows(summary: Summary) -> list[tuple[str, ...]]:
    """A row of texts a tier, one for each of ``COLUMNS``; empty where there is device memory alone.

    Hits are shares of the prompt tokens of finished requests; a link is busy a share of the run.
    """
    facts = [f for f in entries(summary, "kv_tiers") if isinstance(f, dict)]
    several = len({f.get("pool") for f in facts}) > 1
    return [_row(f, several) for f in facts]


def _row(facts: dict[str, Any], several: bool) -> tuple[str, ...]:
    name = str(facts.get("tier"))
    label = _NAMES.get(name, name)
    if several:
        label = f"{label} ({facts.get('pool')})"
    hits = facts.get("hit_fraction")
    share = percent(hits) if is_number(hits) else MISSING
    if name == "device":
        return (label, share, "", "", "", "", "")
    capacity, busy = facts.get("capacity_bytes"), facts.get("link_busy")
    return (
        label,
        share,
        _size(facts.get("peak_bytes")),
        _size(capacity) if is_number(capacity) else "no bound",
        _size(facts.get("loaded_bytes")),
        _size(facts.get("written_bytes")),
        whole_percent(busy) if is_number(busy) else MISSING,
    )


def _size(num_bytes: object) -> str:
    """In GiB, three digits: a column of sizes is read side by side."""
    return f"{significant(num_bytes / 2**30)} GiB" if is_number(num_bytes) else MISSING
