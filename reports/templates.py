"""The templates of the pages, and their style sheets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_HERE = Path(__file__).parent


def template_environment() -> Environment:
    """A fresh environment over this folder: values are escaped, an unknown name is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def style_sheets(*names: str) -> Markup:
    """The text of style sheets, one after another."""
    from markupsafe import Markup

    return Markup("\n".join((_HERE / name).read_text(encoding="utf-8") for name in names))
