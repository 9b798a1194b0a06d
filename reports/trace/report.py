"""The report of a recorded workload, section by section."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from reports.document import (
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
    warning_section,
)
from reports.numbers import is_number, percent, sentence, significant
from reports.trace.answer import Content, answer, capacity_for, gap, gib, span, tokens
from reports.trace.figures import arrivals_over_time, gaps, hits_by_capacity, reuse_over_time
from reports.trace.length_figures import input_against_output, length_distributions

_QUANTILES = ("p25", "p50", "p75", "p90", "p99")
_LENGTHS = ("mean", "p50", "p90", "p99", "max")


def write_trace_page(content: Content, path: Path) -> Path:
    """Write the page to a file, or into a folder as ``trace.html``, and return its path.

    It is identical for identical contents. Raises `ScenarioError` if it cannot be written.
    """
    from reports.html import write_page

    is_file = path.suffix.lower() in (".html", ".htm")
    return write_page(trace_report(content), path if is_file else path / "trace.html")


def trace_report(content: Content) -> Report:
    """Return the report of what ``fleetcast trace inspect --format json`` prints."""
    said = answer(content)
    return Report(
        eyebrow="Workload",
        heading=content["file"],
        headline=said.sentence,
        sentences=said.reasons,
        tiles=_tiles(content),
        sections=[
            _arrivals(content),
            Section("sessions", "Sessions", [Facts(session_facts(content))]),
            _lengths(content),
            _reuse(content),
            _lru(content),
            warning_section(content["warnings"]),
            Section("conditions", "Source", [Facts(_conditions(content))], on="page"),
        ],
        closing=[" · ".join((content["source"], *content["notes"]))],
        version=content["fleetcast_version"],
        pipe_width=None,
    )


def _tiles(content: Content) -> list[Tile]:
    arrivals, tiles = content["arrivals"], []
    if arrivals is not None:
        note = f"{content['arrivals_of']}/s over {span(arrivals['span_s'])}"
        tiles.append(Tile("Rate", significant(arrivals["requests_per_s"]), note))
    else:
        tiles.append(Tile("Requests", f"{content['num_requests']:,}", "in the trace"))
    for label, name in (("Input", "prompt_tokens"), ("Output", "output_tokens")):
        note = f"tokens on average; p99 {content[name]['p99']:,.0f}"
        tiles.append(Tile(label, significant(content[name]["mean"]), note))
    if content["reuse"] is not None:
        found = content["reuse"]["prefix_hit_fraction"]
        tiles.append(Tile("Repeated prefixes", percent(found), "of input tokens"))
        most = capacity_for(content, 0.9)
        if most is not None:
            tiles.append(Tile("LRU for 90% of it", tokens(most["capacity_tokens"]), "tokens"))
    return tiles


def _arrivals(content: Content) -> Section:
    blocks: list[Block] = [
        Text(
            "The requests have no common clock, so there is no rate and no burstiness to show.",
            on="page",
        )
    ]
    if content["arrivals"] is not None:
        series, what = content["series"], content["arrivals_of"]
        blocks = [
            Figure(lambda sheet: arrivals_over_time(series.get("arrivals"), what, sheet)),
            Facts(arrival_facts(content)),
            Figure(lambda sheet: gaps(series.get("gaps"), sheet)),
        ]
    return Section("arrivals", "When requests come", blocks, terminal="Arrivals")


def arrival_facts(content: Content) -> list[Fact]:
    """Return how requests arrive."""
    found = content["arrivals"]
    if found is None:
        return []
    counted = f"{found['num_requests']:,} {content['arrivals_of']} over {span(found['span_s'])}"
    rows = [Fact("Rate", f"{significant(found['requests_per_s'])}/s", counted)]
    if is_number(found["peak_over_mean_600s"]):
        times = f"{significant(found['peak_over_mean_600s'])} \N{MULTIPLICATION SIGN}"
        rows.append(Fact("Busiest 10 minutes", times, "of the mean rate"))
    if is_number(found["hour_swing"]):
        times = f"{significant(found['hour_swing'])} \N{MULTIPLICATION SIGN}"
        rows.append(Fact("Busiest hour of the day", times, "the quietest"))
    # Below a tick of the clock, gaps only reflect how arrivals were spread within the tick.
    has_gaps = not content["ticks_spread"]
    inside = found["interarrival_cv_300s_p50"]
    if is_number(inside) and has_gaps:
        low, high = (found[f"interarrival_cv_300s_{end}"] for end in ("min", "max"))
        note = f"median; range {low:.2f} to {high:.2f}; Poisson: 1"
        rows.append(Fact("CV of gaps, in 5 minutes", f"{inside:.2f}", note))
    if is_number(found["interarrival_cv"]) and has_gaps:
        note = "drift of the rate counts too"
        rows.append(Fact("CV of gaps, in all", f"{found['interarrival_cv']:.2f}", note))
    windows = [w for w in (1, 10, 60, 600)[not has_gaps :] if is_number(found[f"idc_{w}s"])]
    if windows:
        values = " / ".join(significant(found[f"idc_{w}s"]) for w in windows)
        seconds = " / ".join(str(w) for w in windows)
        note = f"of counts in {seconds} s; Poisson: 1"
        rows.append(Fact("Dispersion (IDC)", values, note))
    return rows


def session_facts(content: Content) -> list[Fact]:
    """Return the facts about conversations and agent runs."""
    found = content["sessions"]
    if found is None:
        return []
    rows = [
        Fact(
            "Sessions",
            f"{found['num_sessions']:,}",
            f"{percent(found['single_turn_fraction'])} of one request",
        ),
        Fact(
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
            rows.append(Fact(label, p50, f"median; p90 {p90}, p99 {p99}"))
    return rows


def _lengths(content: Content) -> Section:
    rows = [
        [label, *(f"{content[name][statistic]:,.0f}" for statistic in _LENGTHS)]
        for label, name in (("Input tokens", "prompt_tokens"), ("Output tokens", "output_tokens"))
    ]
    return Section(
        "lengths",
        "How long they are",
        [
            Table([Column(""), *numbers(*_LENGTHS)], rows),
            *_note(_correlation(content)),
            Figure(partial(length_distributions, content["series"])),
            Figure(partial(input_against_output, content["series"].get("joint"))),
        ],
        terminal="Lengths",
    )


def _correlation(content: Content) -> str:
    """Describe in words how input and output lengths correlate."""
    pearson, spearman = (content["correlation"][name] for name in ("pearson", "spearman"))
    if not is_number(pearson) or not is_number(spearman):
        return "correlation of input and output: not defined, one of them is always the same"
    strongest = max(pearson, spearman, key=abs)
    size = abs(strongest)
    degree = "almost none" if size < 0.15 else "weak" if size < 0.35 else "clear"
    sign = "" if size < 0.15 else " positive" if strongest > 0 else " negative"
    said = f"{degree}{sign} correlation of input and output".replace("none corr", "no corr")
    return f"{said}: Pearson {pearson:.2f}, Spearman {spearman:.2f}"


def _reuse(content: Content) -> Section:
    if content["reuse"] is None:
        said = "The format has no prefix ids, so what a prefix cache would find is not known."
        return Section("reuse", "What repeats", [Text(said)], on="page")
    rows = _reuse_rows(content)
    blocks: list[Block] = [Facts(reuse_facts(content)), Figure(partial(reuse_over_time, content))]
    if rows:
        blocks += [
            Table([Column(""), *numbers(*_QUANTILES)], rows),
            *_note("over the uses of blocks seen before"),
        ]
    return Section("reuse", "What repeats", blocks, terminal="Prefix reuse")


def reuse_facts(content: Content) -> list[Fact]:
    """Return what repeats between requests."""
    found = content["reuse"]
    if found is None:
        return []
    block_tokens = found["prefix_block_tokens"]
    top_share = percent(found["top_1pct_blocks_access_fraction"])
    rows = [
        Fact(
            "Repeated prefixes",
            percent(found["prefix_hit_fraction"]),
            "of input tokens, if nothing is evicted",
        ),
        Fact(
            "Requests that hit",
            percent(found["requests_with_hit_fraction"]),
            f"at least one block of {block_tokens} tokens",
        ),
        Fact(
            "Distinct blocks",
            f"{found['distinct_prefix_blocks']:,}",
            f"{tokens(found['distinct_prefix_blocks'] * block_tokens)} tokens, in "
            f"{found['prefix_blocks']:,} uses",
        ),
        Fact(
            "Used once",
            percent(found["blocks_used_once_fraction"]),
            f"of blocks; the 1% used most have {top_share} of the uses",
        ),
    ]
    windows = [w for w in (60, 300, 600) if is_number(found[f"distinct_blocks_{w}s"])]
    if windows and content["arrivals_of"] == "requests":
        used = [tokens(found[f"distinct_blocks_{w}s"] * block_tokens) for w in windows]
        minutes = " / ".join(str(w // 60) for w in windows)
        rows.append(Fact("Working set", " / ".join(used), f"tokens used within {minutes} min"))
    return rows


def _reuse_rows(content: Content) -> list[list[str]]:
    """Return time and distance to the next use, with one cell per entry of `_QUANTILES`."""
    found = content["reuse"]
    # Without a common clock, it is not known what other sessions use in between.
    if found is None or content["lru"] is None or not is_number(found["stack_distance_blocks_p50"]):
        return []
    block_tokens = found["prefix_block_tokens"]
    rows = []
    if is_number(found["reuse_time_s_p50"]):
        times = (gap(found[f"reuse_time_s_{q}"]) for q in _QUANTILES)
        rows.append(["Used again after", *times])
    distances = (tokens(found[f"stack_distance_blocks_{q}"] * block_tokens) for q in _QUANTILES)
    rows.append(["Tokens used between", *distances])
    return rows


def _lru(content: Content) -> Section:
    if content["reuse"] is None:
        return Section("lru", "", [])
    table = lru_table(content)
    note = (
        "hits are a share of input tokens; a prompt is in the cache as soon as it arrives, and "
        "what was used longest ago leaves first"
    )
    return Section(
        "lru",
        "What a prefix cache finds",
        [
            Figure(partial(hits_by_capacity, content)),
            table,
            *(_note(note) if table.rows else []),
        ],
        terminal="One LRU cache for all requests",
    )


def lru_table(content: Content) -> Table:
    """Return the hits of an LRU cache by ascending capacity, and those of an unlimited cache; no
    rows if they are not known."""
    found = (content["lru"] or {}).get("by_capacity", [])
    rows: list[Row] = [
        [
            tokens(row["capacity_tokens"]),
            gib(row) if content["kv_cache"] else "",
            percent(row["hit_fraction"]),
            percent(row["share_of_possible"]),
            Cell("", share=row["share_of_possible"]),
        ]
        for row in found
    ]
    if rows:
        possible = percent(content["reuse"]["prefix_hit_fraction"])
        rows.append(["no limit", "", possible, "100%", Cell("", share=1.0)])
    columns = [
        Column("Capacity, tokens", terminal="Capacity, tokens"),
        *(Column(name, "number", terminal=name) for name in ("KV cache", "Hits")),
        Column("Of what is possible", "number", terminal="Of what is possible"),
        Column("", "bar"),
    ]
    return Table(columns, rows)


def _note(text: str) -> list[Text]:
    """Return a note, which is a sentence on the page."""
    return [Text(text, "note", on="terminal"), Text(sentence(text), "note", on="page")]


def _conditions(content: Content) -> list[Fact]:
    rows = [Fact("source", content["source"])]
    rows += [Fact("done to it", note) for note in content["notes"]]
    if content["kv_cache"]:
        kv = content["kv_cache"]
        rows.append(Fact("KV cache of", f"{kv['model']}, {kv['dtype']}"))
        rows.append(Fact("KV bytes a token", f"{kv['bytes_per_token']:,}"))
    return rows
