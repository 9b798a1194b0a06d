"""Draw Matplotlib figures as small SVG texts that are reproducible and follow the page's theme."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1f2329"
MUTED = "#5f6772"
GRID = "#e1e4e8"
PAPER = "#fefefe"

# Okabe and Ito's palette, safe for the common kinds of color blindness, with lighter tints of three
# colors for accounts that belong together.
BLUE, SKY, GREEN, MINT = "#0072b2", "#56b4e9", "#009e73", "#7fcfb9"
ORANGE, SAND, VERMILION, PINK = "#e69f00", "#f5d08a", "#d55e00", "#cc79a7"
YELLOW, VIOLET, GRAY, SILVER = "#f0e442", "#6a51a3", "#8a8f98", "#c3c7cd"
SERIES = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY)
"""Colors of a plot's lines, in this order."""

_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--rule",
    PAPER: "--paper",
    BLUE: "--blue",
    VERMILION: "--vermilion",
    VIOLET: "--violet",
}

_STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "path.simplify": True,
    "lines.linewidth": 1.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


class Plot(NamedTuple):
    """A rendered figure for a page: its name, title, SVG text and caption."""

    name: str
    title: str
    svg: str
    caption: str


class Sheet(NamedTuple):
    """What a figure is drawn on: the width of a desk's page or of a phone's.

    A page shows the sheet that fits, scaled to its width. Text of 8 points or more is then at least
    11 pixels high.
    """

    name: str
    """Ending of the ids in the figure, which tells the two drawings of it apart."""
    width_in: float
    is_narrow: bool

    @contextmanager
    def drawing(self, height_in: float) -> Iterator[Figure]:
        """Yield an empty figure in the reports' style. It must be drawn and rendered inside the
        context."""
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        with matplotlib.rc_context(_STYLE):
            figure = Figure(figsize=(self.width_in, height_in), layout="constrained")
            FigureCanvasAgg(figure)
            yield figure

    def panels(self, figure: Figure, count: int, **options: Any) -> list[Axes]:
        """Return axes side by side, or one below the other on a narrow sheet."""
        rows, columns = (count, 1) if self.is_narrow else (1, count)
        return list(figure.subplots(rows, columns, squeeze=False, **options).ravel())

    def plot(self, figure: Figure, name: str, title: str, alt: str, caption: str) -> Plot:
        """Return a drawn figure for a page. ``alt`` says what it shows, with its numbers."""
        text = render(figure, f"{name}{self.name}", alt, title)
        return Plot(name, title, text, caption)


WIDE, NARROW = Sheet("", 8.0, False), Sheet("-narrow", 3.4, True)


def render(figure: Figure, name: str, alt: str, title: str) -> str:
    """Render a figure as one ``<svg>`` element for inclusion in a page.

    ``name`` makes its ids unique in the page and its output repeatable; ``alt`` is the text
    alternative. Colors of text and lines become CSS variables, so that a dark page can set them.
    """
    import matplotlib

    buffer = io.StringIO()
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata=metadata)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # A style element would apply to the whole page, whose own style sheet sets all of this.
    surplus = r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>"
    text = re.sub(surplus, "", text, flags=re.DOTALL)
    # A hundredth of a point is not visible. Numbers in text are not shortened.
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d{2})\d+", r"\1", tag[0]), text)
    text = _own_ids(text, name)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    labels = f'role="img" aria-labelledby="{name}-title" aria-describedby="{name}-desc"'
    text = text.replace("<svg", f"<svg {labels}", 1)
    words = f'<title id="{name}-title">{escape(title)}</title>'
    words += f'<desc id="{name}-desc">{escape(alt)}</desc>'
    text = re.sub(r"(<svg[^>]*>)", lambda tag: tag[1] + words, text, count=1)
    # Use the page's font family at these sizes.
    text = text.replace(" font-family: 'DejaVu Sans';", "")
    for color, variable in _VARIABLES.items():
        text = text.replace(color, f"var({variable}, {color})")
    return re.sub(r"\s*\n\s*", "\n", text).strip()


def duration_axis(axes: Axes, low_s: float, high_s: float, *, vertical: bool = False) -> None:
    """Scale an axis of durations logarithmically, with a few ticks that carry their unit."""
    from reports.numbers import target

    log_axis(axes, low_s / 1.15, high_s * 1.15, target, vertical=vertical)


def log_axis(
    axes: Axes,
    low: float,
    high: float,
    write: Callable[[float], str],
    *,
    vertical: bool = False,
) -> None:
    """Scale an axis logarithmically between limits, with a few round ticks formatted by
    ``write``."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    axis = axes.yaxis if vertical else axes.xaxis
    (axes.set_yscale if vertical else axes.set_xscale)("log")
    (axes.set_ylim if vertical else axes.set_xlim)(low, high)
    ticks = _log_ticks(low, high, 0.15 if vertical else 0.2)
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FixedFormatter([write(tick) for tick in ticks]))
    axis.set_minor_locator(NullLocator())


def time_unit(end_s: float) -> tuple[str, float]:
    """Return the unit for an axis of simulated time, and the length of that unit in seconds."""
    for unit, length_s in (("h", 3600.0), ("min", 60.0)):
        if end_s >= 4 * length_s:
            return unit, length_s
    return "s", 1.0


def _log_ticks(low: float, high: float, least_gap: float) -> list[float]:
    """Return round values between the limits, spaced by at least the share ``least_gap`` of the
    axis."""
    span = np.log(high / low)
    exponents = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    ticks: list[float] = []
    for steps in ((1.0, 1.5, 2.0, 3.0, 5.0, 7.0), (1.0, 2.0, 5.0), (1.0, 3.0), (1.0,)):
        ticks = [
            float(f"{step * 10.0**exponent:.6g}")
            for exponent in exponents
            for step in steps
            if low <= step * 10.0**exponent <= high
        ]
        if all(gap >= least_gap * span for gap in np.diff(np.log(ticks))):
            return ticks
    return ticks[:: -(-len(ticks) // 4)]


def _own_ids(text: str, name: str) -> str:
    """Drop ids that are not referenced, and prefix the others with the figure's name."""
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))

    def renamed(match: re.Match[str]) -> str:
        return f' id="{name}-{match[1]}"' if match[1] in used else ""

    text = re.sub(r'\sid="([^"]+)"', renamed, text)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)


def positive(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the finite values above zero, which are all that a logarithmic axis can show."""
    kept: NDArray[np.float64] = values[np.isfinite(values) & (values > 0)]
    return kept
