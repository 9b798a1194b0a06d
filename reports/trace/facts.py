"""Sentences and rows of a trace that the terminal and the page share."""

from __future__ import annotations

from typing import Any

from reports.numbers import is_number, percent, significant
from reports.trace.answer import gap, gib, span, tokens

Facts = dict[str, Any]

QUANTILES = ("p25", "p50", "p75", "p90", "p99")
LENGTHS = ("mean", "p50", "p90", "p99", "max")

LRU_NOTE = (
    "hits are a share of input tokens; a prompt is in the cache as soon as it arrives, and what "
    "was used longest ago leaves first"
)

Fact = tuple[str, str, str]
"""Label, value and note of a fact."""


def arrival_facts(facts: Facts) -> list[Fact]:
    """Return how requests arrive."""
    found = facts["arrivals"]
    if found is None:
        return []
    counted = f"{found['num_requests']:,} {facts['arrivals_of']} over {span(found['span_s'])}"
    rows = [("Rate", f"{significant(found['requests_per_s'])}/s", counted)]
    if is_number(found["peak_over_mean_600s"]):
        times = f"{significant(found['peak_over_mean_600s'])} \N{MULTIPLICATION SIGN}"
        rows.append(("Busiest 10 minutes", times, "of the mean rate"))
    if is_number(found["hour_swing"]):
        times = f"{significant(found['hour_swing'])} \N{MULTIPLICATION SIGN}"
        rows.append(("Busiest hour of the day", times, "the quietest"))
    # Below a tick of the clock, gaps only reflect how arrivals were spread within the tick.
    has_gaps = not facts["ticks_spread"]
    inside = found["interarrival_cv_300s_p50"]
    if is_number(inside) and has_gaps:
        low, high = (found[f"interarrival_cv_300s_{end}"] for end in ("min", "max"))
        note = f"median; range {low:.2f} to {high:.2f}; Poisson: 1"
        rows.append(("CV of gaps, in 5 minutes", f"{inside:.2f}", note))
    if is_number(found["interarrival_cv"]) and has_gaps:
        note = "drift of the rate counts too"
        rows.append(("CV of gaps, in all", f"{found['interarrival_cv']:.2f}", note))
    windows = [w for w in (1, 10, 60, 600)[not has_gaps :] if is_number(found[f"idc_{w}s"])]
    if windows:
        values = " / ".join(significant(found[f"idc_{w}s"]) for w in windows)
        seconds = " / ".join(str(w) for w in windows)
        note = f"of counts in {seconds} s; Poisson: 1"
        rows.append(("Dispersion (IDC)", values, note))
    return rows


def length_rows(facts: Facts) -> list[tuple[str, ...]]:
    """Return input and output tokens, with one cell per entry of `LENGTHS`."""
    return [
        (label, *(f"{facts[name][statistic]:,.0f}" for statistic in LENGTHS))
        for label, name in (("Input tokens", "prompt_tokens"), ("Output tokens", "output_tokens"))
    ]


def correlation_note(facts: Facts) -> str:
    """Describe in words how input and output lengths correlate."""
    pearson, spearman = (facts["correlation"][name] for name in ("pearson", "spearman"))
    if not is_number(pearson) or not is_number(spearman):
        return "correlation of input and output: not defined, one of them is always the same"
    strongest = max(pearson, spearman, key=abs)
    size = abs(strongest)
    degree = "almost none" if size < 0.15 else "weak" if size < 0.35 else "clear"
    sign = "" if size < 0.15 else " positive" if strongest > 0 else " negative"
    said = f"{degree}{sign} correlation of input and output".replace("none corr", "no corr")
    return f"{said}: Pearson {pearson:.2f}, Spearman {spearman:.2f}"


def reuse_facts(facts: Facts) -> list[Fact]:
    """Return what repeats between requests."""
    found = facts["reuse"]
    if found is None:
        return []
    block_tokens = found["prefix_block_tokens"]
    top_share = percent(found["top_1pct_blocks_access_fraction"])
    rows = [
        (
            "Repeated prefixes",
            percent(found["prefix_hit_fraction"]),
            "of input tokens, if nothing is evicted",
        ),
        (
            "Requests that hit",
            percent(found["requests_with_hit_fraction"]),
            f"at least one block of {block_tokens} tokens",
        ),
        (
            "Distinct blocks",
            f"{found['distinct_prefix_blocks']:,}",
            f"{tokens(found['distinct_prefix_blocks'] * block_tokens)} tokens, in "
            f"{found['prefix_blocks']:,} uses",
        ),
        (
            "Used once",
            percent(found["blocks_used_once_fraction"]),
            f"of blocks; the 1% used most have {top_share} of the uses",
        ),
    ]
    windows = [w for w in (60, 300, 600) if is_number(found[f"distinct_blocks_{w}s"])]
    if windows and facts["arrivals_of"] == "requests":
        used = [tokens(found[f"distinct_blocks_{w}s"] * block_tokens) for w in windows]
        minutes = " / ".join(str(w // 60) for w in windows)
        rows.append(("Working set", " / ".join(used), f"tokens used within {minutes} min"))
    return rows


def reuse_rows(facts: Facts) -> list[tuple[str, ...]]:
    """Return time and distance to the next use, with one cell per entry of `QUANTILES`."""
    found = facts["reuse"]
    # Without a common clock, it is not known what other sessions use in between.
    if found is None or facts["lru"] is None or not is_number(found["stack_distance_blocks_p50"]):
        return []
    block_tokens = found["prefix_block_tokens"]
    rows = []
    if is_number(found["reuse_time_s_p50"]):
        times = (gap(found[f"reuse_time_s_{q}"]) for q in QUANTILES)
        rows.append(("Used again after", *times))
    distances = (tokens(found[f"stack_distance_blocks_{q}"] * block_tokens) for q in QUANTILES)
    rows.append(("Tokens used between", *distances))
    return rows


def lru_headers(facts: Facts) -> tuple[str, ...]:
    """Return the columns of `lru_rows`."""
    kv = ("KV cache",) if facts["kv_cache"] else ()
    return ("Capacity, tokens", *kv, "Hits", "Of what is possible")


def lru_rows(facts: Facts) -> list[tuple[str, ...]]:
    """Return the hits of an LRU cache by ascending capacity, and those of an unlimited cache."""
    rows = (facts["lru"] or {}).get("by_capacity", [])
    if not rows:
        return []
    has_kv = bool(facts["kv_cache"])
    without_limit = ("no limit", *(("",) * has_kv), percent(facts["reuse"]["prefix_hit_fraction"]))
    return [
        (
            tokens(row["capacity_tokens"]),
            *((gib(row),) if has_kv else ()),
            percent(row["hit_fraction"]),
            percent(row["share_of_possible"]),
        )
        for row in rows
    ] + [(*without_limit, "100%")]


def lru_shares(facts: Facts) -> list[float]:
    """Return the share of the possible hits in each of `lru_rows`."""
    rows = (facts["lru"] or {}).get("by_capacity", [])
    return [*(row["share_of_possible"] for row in rows), 1.0] if rows else []


def session_facts(facts: Facts) -> list[Fact]:
    """Return the facts about conversations and agent runs."""
    found = facts["sessions"]
    if found is None:
        return []
    rows = [
        (
            "Sessions",
            f"{found['num_sessions']:,}",
            f"{percent(found['single_turn_fraction'])} of one request",
        ),
        (
            "Requests a session",
            significant(found["turns_mean"]),
            f"p50 {found['turns_p50']:,.0f}, p90 {found['turns_p90']:,.0f}, "
            f"p99 {found['turns_p99']:,.0f}, max {found['turns_max']:,}",
        ),
    ]
    for name, label in (
        ("turn_gap_s", "Between its requests"),
        ("think_time_s", "From answer to next"),
    ):
        if is_number(found.get(f"{name}_p50")):
            p50, p90, p99 = (gap(found[f"{name}_{q}"]) for q in ("p50", "p90", "p99"))
            rows.append((label, p50, f"median; p90 {p90}, p99 {p99}"))
    return rows
