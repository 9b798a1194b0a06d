"""A what-if on a terminal: the answer first, then the tables it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.whatif.answer import (
    heading,
    headline,
    method_text,
    per_gpu_sentence,
    slo_sentence,
    together_sentence,
    why_sentence,
    zero_text,
)
from reports.whatif.facts import (
    account_deltas,
    base_warnings,
    figure_rows,
    ran,
    refusals,
    settings_text,
    warning_rows,
)
from reports.whatif.folder import Content
from reports.whatif.grid import Block, Printer
from reports.words import MISSING, duration_unit

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_WIDTH = 110
_LEAST_SHOWN = 1e-3  # of mean end-to-end time: smaller accounts are in the page and the JSON


def print_whatif(content: Content, console: Console | None = None) -> None:
    """Print the content of whatif.json to a terminal, a file or a pipe.

    Where the output cannot take colour or Unicode, plain text and ASCII are written.
    """
    from rich.console import Console

    screen = console or Console(highlight=False)
    if console is None and not screen.is_terminal:
        screen.width = _PIPE_WIDTH  # a file or a pipe has no width of its own
    printer = Printer(screen)
    printer.say(headline(content), "bold")
    for text in (slo_sentence(content), per_gpu_sentence(content), together_sentence(content)):
        if text:
            printer.say(text)
    _print_figures(printer, content)
    _print_refused(printer, content)
    _print_accounts(printer, content)
    _print_warnings(printer, content)
    printer.say("")
    workload = content["baseline"]["conditions"].get("workload") or ""
    printer.say(f"Baseline: {heading(content)}, {workload}. {why_sentence(content)}", "dim")
    printer.say(method_text(content), "dim")


def _print_figures(printer: Printer, content: Content) -> None:
    rows = figure_rows(content, compact=True)
    blocks = []
    for variant in content["variants"]:
        if variant["refused"] is not None:
            refused = [("refused", "", "bad"), *[(MISSING, "", "")] * len(rows)]
            blocks.append(Block(variant["name"], refused))
            continue
        index = ran(content).index(variant)
        block = [
            (c.value, f"~ {c.change}" if c.unsure else c.change, "unsure" if c.unsure else c.tone)
            for c in (row.cells[index] for row in rows)
        ]
        blocks.append(Block(variant["name"], [*block, (variant["label"] or MISSING, "", "")]))
    if any(row.product for row in rows):
        products = [(row.product, "", "") for row in rows]
        blocks.append(Block("product of singles", [*products, ("", "", "")]))
    labels = [(row.label, row.unit) for row in rows]
    base = [row.base for row in rows]
    printer.say("")
    printer.grid(
        [*labels, ("evidence", "")], [*base, content["baseline"]["label"] or MISSING], blocks
    )
    if any(row.cells[i].unsure for row in rows for i in range(len(row.cells))):
        printer.say(f"{zero_text(content)}; pt: percentage points", "dim")


def _print_accounts(printer: Printer, content: Content) -> None:
    every = account_deltas(content)
    if not every or not ran(content):
        return
    total_s = sum(row.base_s for row in every)
    least_s = _LEAST_SHOWN * total_s
    rows = [r for r in every if r.base_s > least_s or max(map(abs, r.deltas_s)) > least_s]
    unit, per_second = duration_unit([total_s])
    decimals = max(4 - len(f"{total_s * per_second:.0f}"), 1)
    widest = max(abs(delta) for row in rows for delta in row.deltas_s) or 1.0
    blocks = []
    for index, variant in enumerate(ran(content)):
        cells = []
        for delta_s in (row.deltas_s[index] for row in rows):
            text = _signed(delta_s * per_second, decimals)
            cells.append((text, printer.bar(delta_s / widest), _tone(delta_s)))
        whole_s = sum(row.deltas_s[index] for row in every)
        cells.append((_signed(whole_s * per_second, decimals), "", _tone(whole_s)))
        blocks.append(Block(variant["name"], cells))
    labels = [*((row.label, unit) for row in rows), ("E2E, the sum", unit)]
    base_s = [*(row.base_s for row in rows), total_s]
    printer.say("\nWhich accounts of mean end-to-end time moved", "bold")
    printer.grid(labels, [f"{s * per_second:,.{decimals}f}" for s in base_s], blocks)


def _print_refused(printer: Printer, content: Content) -> None:
    for name, reason in refusals(content):
        printer.say(f"{name} is refused: {reason}", "red")


def _print_warnings(printer: Printer, content: Content) -> None:
    base, rows = base_warnings(content), warning_rows(content)
    same = [v for v in ran(content) if v["changes_nothing"]]
    if not (base or rows or same):
        return
    printer.say("\nMind", "bold")
    for variant in same:
        printer.say(
            f"! {variant['name']}: changes nothing; {settings_text(variant)} was so.", "yellow"
        )
    for row in rows:
        sign = "!" if row.is_new else "+"
        printer.say(f"{sign} {row.variant}: {row.text}", "yellow" if row.is_new else "")
    for text in base:
        printer.say(f"! baseline: {text}", "yellow")


def _signed(value: float, decimals: int) -> str:
    """With its sign; what rounds to nothing is 0."""
    text = f"{value:+,.{decimals}f}"
    return text if text.strip("+-0.") else "0"


def _tone(delta_s: float) -> str:
    return "" if delta_s == 0 else "bad" if delta_s > 0 else "good"
