"""Parser for the pages that the tests read."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from reports.run.report import write_run_page

VOID = {"meta", "br", "img", "link", "hr", "input"}


def check_figures(page: Page) -> int:
    """Check that each figure is drawn twice, for wide and for narrow screens, each with its title
    and a text alternative; return how many figures there are."""
    images, ids = page.all("svg"), [attrs.get("id") for _, attrs in page.elements]
    assert len(page.all("figcaption")) == len(page.all("figure"))
    assert len(images) == 2 * len(page.all("figure"))
    for image in images:
        assert image["role"] == "img"
        assert image["aria-labelledby"] in ids
        assert image["aria-describedby"] in ids
    assert all(len(text) > 40 for text in page.text.get("desc", []))
    return len(page.all("figure"))


class Page(HTMLParser):
    """What the tests ask of a page: its elements in order, text by element, and its nesting."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.text.setdefault(self.open[-1], []).append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attrs for name, attrs in self.elements if name == tag]


def page_of(folder: Path) -> tuple[str, Page]:
    html = write_run_page(folder).read_text(encoding="utf-8")
    return html, Page(html)
