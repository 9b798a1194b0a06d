"""What to mind before a trace is taken for the workload to come."""

from __future__ import annotations

from typing import Any

_DAY_S = 86_400


def trace_warnings(facts: dict[str, Any]) -> list[str]:
    """Sentences, the gravest first."""
    texts = []
    skipped = facts["skipped_rows"]
    if skipped:
        texts.append(f"{skipped:,} rows could not be read and were skipped.")
    if facts["clock"] == "none":
        texts.append("The format has no times: replay it at a rate of your own.")
    if facts["clock"] == "session":
        texts.append(
            "Each session has a clock of its own, and how sessions overlap decides what a cache "
            "must hold: place them in time (--sessions-per-hour) to see what a limited cache finds."
        )
    arrivals = facts["arrivals"]
    if arrivals is not None and arrivals["span_s"] < _DAY_S:
        # Hour-of-day extremes of the ServeGen and RAGPulse traces, over days.
        texts.append(
            "It covers less than a day. Rates of real services moved by 1.4 to 4.9 times (a campus "
            "by 24) between the hours of a day."
        )
    if facts["lru"] is not None and arrivals is not None and not facts["warmup_s"]:
        texts.append(
            "Hits are counted from an empty cache, so a short trace shows too few (--warmup leaves "
            "out its beginning)."
        )
    return texts
