"""The page of a trace: one self-contained HTML file."""

from __future__ import annotations

from pathlib import Path

from reports.numbers import percent, sentence, significant
from reports.templates import Column, Tile, render_page
from reports.trace.answer import answer, capacity_for, span, tokens
from reports.trace.facts import (
    LENGTHS,
    LRU_NOTE,
    QUANTILES,
    Facts,
    arrival_facts,
    correlation_note,
    length_rows,
    lru_headers,
    lru_rows,
    lru_shares,
    reuse_facts,
    reuse_rows,
    session_facts,
)
from reports.trace.figures import draw_trace
from sim.errors import ScenarioError


def write_trace_page(facts: Facts, path: Path) -> Path:
    """Write the page to a file, or into a folder as ``trace.html``, and return its path.

    The page needs no network and no script, and is identical for identical facts. Raises
    `ScenarioError` if it cannot be written.
    """
    is_file = path.suffix.lower() in (".html", ".htm")
    page = path if is_file else path / "trace.html"
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(render_trace(facts), encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"cannot write the page {page}: {error.strerror}") from None
    return page


def render_trace(facts: Facts) -> str:
    """Render the page as HTML text."""
    said = answer(facts)
    numbers = [Column(name, "n") for name in QUANTILES]
    return render_page(
        "trace/page.html.j2",
        "trace/page.css.j2",
        plots=draw_trace(facts),
        title=f"{facts['file']}: workload",
        eyebrow="Workload",
        heading=facts["file"],
        answer=said.sentence,
        reason=" ".join(said.reasons),
        version=facts["fleetcast_version"],
        tiles=_tiles(facts),
        arrivals=arrival_facts(facts),
        no_arrivals=facts["arrivals"] is None,
        length_columns=[Column(""), *(Column(name, "n") for name in LENGTHS)],
        lengths=length_rows(facts),
        correlation=sentence(correlation_note(facts)),
        reuse=reuse_facts(facts),
        reuse_columns=[Column(""), *numbers],
        reuse_rows=reuse_rows(facts),
        lru_headers=lru_headers(facts),
        lru=list(zip(lru_rows(facts), lru_shares(facts), strict=True)),
        lru_note=sentence(LRU_NOTE),
        sessions=session_facts(facts),
        warnings=facts["warnings"],
        conditions=_conditions(facts),
    )


def _tiles(facts: Facts) -> list[Tile]:
    arrivals, prompt, output = facts["arrivals"], facts["prompt_tokens"], facts["output_tokens"]
    tiles = []
    if arrivals is not None:
        note = f"{facts['arrivals_of']}/s over {span(arrivals['span_s'])}"
        tiles.append(Tile("Rate", significant(arrivals["requests_per_s"]), note))
    else:
        tiles.append(Tile("Requests", f"{facts['num_requests']:,}", "in the trace"))
    for label, found in (("Input", prompt), ("Output", output)):
        note = f"tokens on average; p99 {found['p99']:,.0f}"
        tiles.append(Tile(label, significant(found["mean"]), note))
    if facts["reuse"] is not None:
        found = facts["reuse"]["prefix_hit_fraction"]
        tiles.append(Tile("Repeated prefixes", percent(found), "of input tokens"))
        most = capacity_for(facts, 0.9)
        if most is not None:
            tiles.append(Tile("LRU for 90% of it", tokens(most["capacity_tokens"]), "tokens"))
    return tiles


def _conditions(facts: Facts) -> list[tuple[str, str]]:
    pairs = [("source", facts["source"])]
    pairs += [("done to it", note) for note in facts["notes"]]
    if facts["kv_cache"]:
        kv = facts["kv_cache"]
        pairs.append(("KV cache of", f"{kv['model']}, {kv['dtype']}"))
        pairs.append(("KV bytes a token", f"{kv['bytes_per_token']:,}"))
    return pairs
