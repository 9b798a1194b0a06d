"""The accuracy of a validation on a terminal: the answer first, then the tables it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from reports.validation_facts import (
    Cell,
    Content,
    block_rows,
    conformance_rows,
    headline,
    step_rows,
)
from reports.validation_run_facts import (
    GLANCE_COLUMNS,
    LOAD_COLUMNS,
    PERCENTILES,
    glance_rows,
    latency_rows,
    load_rows,
    run_note,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

_MAX_WIDTH = 110
_NARROW = 104  # below this width, what was measured is left out: the error tells it
_TONES = {"good": "green", "fair": "yellow", "poor": "red", "": ""}
_ASCII = str.maketrans({"\N{EN DASH}": "-", "µ": "u"})

_WRAPPED = ("runs", "columns that differ")

_Value = str | int | Cell
_Error = TypeVar("_Error", str, Cell)


def print_validation(content: Content, console: Console | None = None) -> None:
    """Print the content of accuracy.json to a terminal, a file or a pipe.

    Where the output cannot take colour or Unicode, plain text and ASCII are written.
    """
    from rich.console import Console

    screen = console or Console(highlight=False)
    if console is None and not screen.is_terminal:
        screen.width = _MAX_WIDTH  # a file or a pipe has no width of its own
    printer = _Printer(screen)
    printer.say(headline(content), "bold")
    _print_glance(printer, content)
    _print_runs(printer, content)
    _print_steps(printer, content)
    _print_conformance(printer, content)
    printer.table(
        "KV blocks: the memory plan against what the engine allocated",
        ["engine", "predicted", "recorded", "error"],
        [[*names, error] for *names, error in block_rows(content)],
    )
    if content["warnings"]:
        printer.say("\nMind", "bold")
        for line in content["warnings"]:
            printer.say(f"! {line}", "yellow")
    printer.say("")
    for key, conditions in content["conditions"].items():
        printer.say(
            f"{key}: {conditions['engine']}, {conditions['model']} on {conditions['gpus']} x "
            f"{conditions['gpu']}; profile {conditions['profile']}, efficiency "
            f"{conditions['efficiency']}",
            "dim",
        )


def _print_glance(printer: _Printer, content: Content) -> None:
    headers = ["regime", *(part for name in GLANCE_COLUMNS for part in (name, "worst"))]
    rows: list[list[_Value]] = [
        [row.regime, *(part for cell, worst in row.cells for part in (cell, worst))]
        for row in glance_rows(content)
    ]
    title = "Serving runs at a glance: median of the absolute errors, and the worst"
    printer.table(title, headers, rows)


def _print_runs(printer: _Printer, content: Content) -> None:
    headers = ["run", "metric", ""]
    headers += printer.triples([(name, "measured", "error") for name in PERCENTILES])
    rows: list[list[_Value]] = []
    before = ""
    for latency in latency_rows(content):
        run = latency.run if latency.run != before else ""
        rows.append([run, latency.metric, latency.unit, *printer.triples(latency.triples)])
        before = latency.run
    title = "Latency of the serving runs, predicted from arrivals alone"
    printer.table(title, headers, rows, left=("run", "metric", ""))
    for row in load_rows(content):
        note = run_note(content, row.run)
        if "stalled" in note:
            printer.say(f"{row.run}: {note}", "dim")
    headers = ["run", "regime", "load"]
    headers += printer.triples([(name, "meas.", "error") for *_, name in LOAD_COLUMNS])
    printer.table(
        "Throughput and requests running; load is offered over saturation rate",
        headers,
        [[r.run, r.regime, r.load, *printer.triples(r.triples)] for r in load_rows(content)],
        left=("run", "regime"),
    )


def _print_steps(printer: _Printer, content: Content) -> None:
    rows: list[list[_Value]] = []
    for row in step_rows(content):
        errors = (row.median, row.p95, row.worst, row.bias)
        rows.append([row.key, row.kind, row.num_points, *errors, row.held_out, row.held_out_median])
    headers = ["engine", "kind", "n", "median", "p95", "worst", "bias"]
    printer.table(
        "Controlled steps: absolute errors of the step time, and of the half set aside",
        [*headers, "set aside", "median"],
        rows,
        left=("engine", "kind"),
    )


def _print_conformance(printer: _Printer, content: Content) -> None:
    printer.table(
        "Scheduler, replayed on the recorded clock: share of steps composed as recorded",
        ["run", "steps", "equal", "prefix hits equal", "columns that differ"],
        conformance_rows(content),
        left=("run", "columns that differ"),
    )


class _Printer:
    """Carries the console and its limits."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._ascii_only = console.options.ascii_only
        self._width = min(console.width, _MAX_WIDTH)

    def triples(self, cells: Sequence[tuple[str, str, _Error]]) -> list[str | _Error]:
        """(predicted, measured, error) side by side; without measured where space is short."""
        is_narrow = self._width < _NARROW
        parts: list[str | _Error] = []
        for predicted, measured, error in cells:
            parts += [predicted, error] if is_narrow else [predicted, measured, error]
        return parts

    def say(self, text: str, style: str = "") -> None:
        """A paragraph."""
        from rich.text import Text

        self._show(Text(self._plain(text), style=style))

    def table(
        self,
        title: str,
        headers: list[str],
        rows: Sequence[Sequence[_Value]],
        *,
        left: tuple[str, ...] = (),
    ) -> None:
        """A titled table; nothing where there are no rows. Columns not in ``left`` are numbers."""
        from rich.text import Text

        if not rows:
            return
        self.say(f"\n{title}", "bold")
        table = self._empty_table()
        for header in headers:
            is_left = header in left or header == headers[0]
            wraps = header in _WRAPPED
            table.add_column(header, justify="left" if is_left else "right", no_wrap=not wraps)
        for row in rows:
            cells = [
                Text(self._plain(value.text), style=_TONES[value.tone])
                if isinstance(value, Cell)
                else Text(self._plain(str(value)))
                for value in row
            ]
            table.add_row(*cells)
        self._show(table)

    def _empty_table(self) -> Table:
        from rich import box
        from rich.table import Table

        return Table(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", padding=(0, 1)
        )

    def _plain(self, text: str) -> str:
        if not self._ascii_only:
            return text
        return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")

    def _show(self, item: RenderableType) -> None:
        self._console.print(item, width=self._width, highlight=False, markup=False)
