"""Page templates and their style sheets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from reports.numbers import duration, named_quantity, percent, whole_percent
from sim.errors import ScenarioError

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from reports.svg import Plot

_HERE = Path(__file__).parent
_FRAME: dict[str, Any] = {"reason": "", "tone": "", "alerts": (), "tiles": ()}


def render_page(
    template: str, *more_style_sheets: str, plots: Mapping[str, Plot], **facts: Any
) -> str:
    """Render a page from a template that extends ``layout.html.j2``.

    The top of that file lists the names it reads. ``plots`` are the figures by name.
    """
    from markupsafe import Markup

    return (
        template_environment()
        .get_template(template)
        .render(
            css=style_sheets("page.css.j2", *more_style_sheets),
            plots={name: plot._replace(svg=Markup(plot.svg)) for name, plot in plots.items()},
            **(_FRAME | facts),
        )
    )


def save_page(text: str, path: Path) -> Path:
    """Write a page to the path given with ``--out`` and return the path.

    Raises `ScenarioError` if the file cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"--out {path}: {error.strerror}") from None
    return path


def template_environment() -> Environment:
    """Return a new Jinja environment for this folder. It escapes values, and unknown names are
    errors."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "percent": percent,
        "quantity": named_quantity,
        "whole_percent": whole_percent,
        "duration": duration,
    }
    return environment


def style_sheets(*names: str) -> Markup:
    """Return the text of the style sheets, concatenated in order."""
    from markupsafe import Markup

    return Markup("\n".join((_HERE / name).read_text(encoding="utf-8") for name in names))


class Tile(NamedTuple):
    """One of the few headline numbers at the top of a page."""

    label: str
    value: str
    note: str


class Column(NamedTuple):
    """A column of a table; ``kind`` is its style.

    ``n`` means right-aligned numbers, ``over`` small muted text, ``tags`` evidence labels.
    """

    heading: str
    kind: str = ""


class Cell(NamedTuple):
    """A table cell that has a tone (good or poor) or a small note below its text."""

    text: str
    tone: str = ""
    note: str = ""
