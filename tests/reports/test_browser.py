"""Pages in a real browser have no errors, no repaired markup and no cut-off content."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from reports.run.report import write_run_page
from scenarios.calibration.kernels import import_facts
from scenarios.commands import app
from scenarios.files.load import load_scenario
from scenarios.run.simulate import simulate
from tests.calibrate.kernel_lines import GRIDS, made_lines, write_lines
from tests.properties.scenarios import azure_trace
from tests.reports.html_page import Page, check_figures
from tests.reports.sample import write_sample as write_report_sample
from tests.scenarios.experiments.sweep.samples import SCENARIO, write_sweep_file
from tests.scenarios.validation.samples import write_sample as write_validation_sample

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on PATH"),
]
WIDTHS = (1280, 390)
BACKGROUNDS = {"dark": (0, "rgb(21, 24, 29)"), "light": (1, "rgb(255, 255, 255)")}


def page_of_a_run(*overrides: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        chosen = ["workload.num_requests=300", "bands=false", *overrides]
        return write_run_page(simulate(load_scenario("scenarios/demo.yaml", chosen)).write(folder))

    return make


def page_of_a_sample(folder: Path) -> Path:
    return write_run_page(write_report_sample(folder, requests=800, replicas=9, rejected=30))


def page_of_a_validation(folder: Path) -> Path:
    write_validation_sample(folder / "measured", "x1")
    app(["validate", str(folder / "measured"), "--out", str(folder)], standalone_mode=False)
    return folder / "validation.html"


def page_of_a_command(page: str, *command: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        app([*command, "--out", str(folder / "out")], standalone_mode=False)
        return folder / "out" / page

    return make


def page_of_a_trace(folder: Path) -> Path:
    trace = azure_trace(folder / "trace.csv", 400)
    return page_of_a_command("trace.html", "trace", "inspect", str(trace))(folder)


def page_of_a_sweep(folder: Path) -> Path:
    axes = {"workload.rate_per_s": [4, 16, 60], "engine.max_num_seqs": [2, 8, 64]}
    gpus = {"hardware.gpu": ["H200", "H100"]}
    values = {"scenario": SCENARIO, "axes": axes | gpus, "require": "attainment >= 0.9"}
    folder.mkdir(exist_ok=True)
    file = write_sweep_file(folder, values)
    return page_of_a_command("sweep.html", "sweep", str(file), "--jobs", "1")(folder)


def page_of_a_step(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    page, of_model = folder / "step.html", ("--model", "deepseek-v3", "--gpu", "H200", "--tp", "8")
    command = ["explain", *of_model, "--decode-seqs", "32", "--prefill-tokens", "1000"]
    app([*command, "--out", str(page)], standalone_mode=False)
    return page


def calibrations(folder: Path) -> list[Path]:
    """Write two calibrations of made timings; return their folders."""
    found = []
    for name, scale in (("a", 1.0), ("b", 0.8)):
        made = folder / name
        made.mkdir(parents=True)
        lines = write_lines(made / "lines.jsonl", made_lines(*GRIDS, scale=scale))
        import_facts([lines], out=made, gpu=None)
        found.append(made)
    return found


def page_of_a_calibration(folder: Path) -> Path:
    first, page = str(calibrations(folder)[0]), folder / "calibration.html"
    app(["calibrate", "show", first, "--out", str(page)], standalone_mode=False)
    return page


def page_of_two_calibrations(folder: Path) -> Path:
    page = folder / "diff.html"
    both = map(str, calibrations(folder))
    app(["calibrate", "diff", *both, "--out", str(page)], standalone_mode=False)
    return page


# Every kind of page fleetcast writes, and how to come by one.
PAGES: dict[str, Callable[[Path], Path]] = {
    "run": page_of_a_run(),
    "overloaded run": page_of_a_run("workload.rate_per_s=80", "pool.replicas=2"),
    "run with rejections": page_of_a_run("engine.max_model_len=2000"),
    "many replicas": page_of_a_sample,
    "validation": page_of_a_validation,
    "trace": page_of_a_trace,
    "what-if": page_of_a_command(
        "whatif.html",
        "whatif",
        "scenarios/closed_loop.yaml",
        "--set",
        "engine.tensor_parallel_size=2",
        "--set",
        "kv.cache_dtype=fp8",
    ),
    "capacity": page_of_a_command(
        "capacity.html",
        "capacity",
        "scenarios/demo.yaml",
        "--num-requests",
        "300",
        "--precision",
        "0.2",
        "--no-model-error",
    ),
    "sweep": page_of_a_sweep,
    "step": page_of_a_step,
    "calibration": page_of_a_calibration,
    "two calibrations": page_of_two_calibrations,
}

# Lays the page into frames of each width and reports what only a layout can tell.
PROBE = """<!DOCTYPE html><meta charset="utf-8"><title>probe</title>%s
<pre id="found">not run</pre>
<script>
addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map(frame => {
    const root = frame.contentDocument.documentElement;
    const isShown = e => e.getClientRects().length > 0;
    return {
      width: frame.clientWidth,
      content_width: root.scrollWidth,
      beyond: [...root.querySelectorAll("main > *, section > *")]
        .filter(e => e.getBoundingClientRect().right > frame.clientWidth + 1)
        .map(e => e.outerHTML.slice(0, 120)),
      empty_figures: [...root.querySelectorAll("figure")]
        .filter(e => [...e.querySelectorAll("svg")].filter(isShown).length !== 1
          || e.getBoundingClientRect().height < 20).length,
      small_texts: [...root.querySelectorAll("svg text")]
        .filter(e => isShown(e) && parseFloat(getComputedStyle(e).fontSize)
          * Math.hypot(e.getCTM().a, e.getCTM().b) < 10.9)
        .map(e => e.textContent),
      background: getComputedStyle(root.querySelector("body")).backgroundColor,
    };
  });
  document.querySelectorAll("iframe").forEach(frame => frame.remove());
  document.getElementById("found").textContent = JSON.stringify(found);
});
</script>"""


class Opened(NamedTuple):
    """A page, its document after loading, and what the console said."""

    page: Path
    document: str
    said: str


def run_browser(page: Path, profile: Path, *options: str) -> Opened:
    """Open a page in a browser that can reach nothing else."""
    assert BROWSER is not None
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={profile}",
        "--enable-logging=stderr",
        "--virtual-time-budget=5000",
        *options,
        "--dump-dom",
        page.resolve().as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Opened(page, done.stdout, "\n".join(said))


def layout(page: Path, folder: Path, *options: str) -> list[dict[str, Any]]:
    """What the probe finds at each of ``WIDTHS``."""
    source = html.escape(page.read_text(encoding="utf-8"))
    frames = [f'<iframe width="{w}" height="900" srcdoc="{source}"></iframe>' for w in WIDTHS]
    probe = folder / "probe.html"
    probe.write_text(PROBE % "".join(frames), encoding="utf-8")
    document = run_browser(probe, folder / "profile", *options).document
    match = re.search(r'<pre id="found">(.*?)</pre>', document, flags=re.DOTALL)
    assert match is not None
    found: list[dict[str, Any]] = json.loads(html.unescape(match[1]))
    return found


@pytest.fixture(scope="module", params=list(PAGES))
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    folder = tmp_path_factory.mktemp("page")
    return run_browser(PAGES[request.param](folder), folder / "profile")


def test_the_browser_complains_of_nothing_and_repairs_nothing(opened: Opened) -> None:
    assert opened.said == ""
    written = [tag for tag, _ in Page(opened.page.read_text(encoding="utf-8")).elements]
    # the script adds a button to each heading of a table that it can sort
    seen = [tag for tag, _ in Page(opened.document).elements if tag != "button"]
    assert seen == written


def test_structure(opened: Opened) -> None:
    seen = Page(opened.document)
    levels = [int(tag[1]) for tag, _ in seen.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert seen.all("svg")
    if seen.all("desc"):
        check_figures(seen)
    for header in seen.all("th"):
        assert header["scope"] in ("col", "row", "colgroup", "rowgroup")
    assert len(seen.all("figure")) == len(seen.all("figcaption"))
    ids = [attrs["id"] for _, attrs in seen.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    labeled = [attrs["aria-labelledby"] for attrs in seen.all("section")]
    assert set(labeled) <= set(ids)


@pytest.mark.parametrize("theme", list(BACKGROUNDS))
def test_nothing_is_cut_off_at_any_width(opened: Opened, tmp_path: Path, theme: str) -> None:
    option, background = BACKGROUNDS[theme]
    for frame in layout(opened.page, tmp_path, f"--blink-settings=preferredColorScheme={option}"):
        assert frame["content_width"] <= frame["width"]
        assert frame["beyond"] == []
        assert frame["empty_figures"] == 0
        if 'class="plot narrow"' in opened.document:
            assert frame["small_texts"] == []
        assert frame["background"] == background


def test_a_bad_page_would_be_found(tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!DOCTYPE html><html><head><title>bad</title></head><body><main>"
        '<p>a<div style="width: 900px">wide</div></p></main>'
        '<script>console.error("broken")</script></body></html>'
    )
    opened = run_browser(bad, tmp_path / "profile")
    assert "broken" in opened.said
    assert opened.document.count("<p>") > 1
    wide, narrow = layout(bad, tmp_path)
    assert wide["content_width"] <= 1280
    assert narrow["content_width"] > 390
    assert "wide" in narrow["beyond"][0]


CLICKS = """<script>
addEventListener("load", () => {
  const table = document.querySelector("#memory table");
  const button = table.tHead.querySelectorAll("button")[1];
  const seen = [0, 1, 2, 3].map(times => {
    if (times) button.click();
    const head = button.parentElement.ariaSort;
    return [head, [...table.rows].slice(1).map(row => row.cells[0].textContent)];
  });
  document.body.innerHTML = "<pre id=found></pre>";
  document.getElementById("found").textContent = JSON.stringify(seen);
});
</script>"""


def test_a_heading_sorts_its_table(tmp_path: Path) -> None:
    page = page_of_a_sample(tmp_path / "sample")
    clicked = tmp_path / "clicked.html"
    clicked.write_text(page.read_text(encoding="utf-8") + CLICKS, encoding="utf-8")
    document = run_browser(clicked, tmp_path / "profile").document
    match = re.search(r'<pre id="found">(.*?)</pre>', document)
    assert match is not None
    written = ["weights", "workspace", "KV cache", "free", "total"]
    upward = ["workspace", "free", "weights", "KV cache", "total"]
    downward = ["KV cache", "weights", "free", "workspace", "total"]
    assert json.loads(html.unescape(match[1])) == [
        [None, written],
        ["ascending", upward],
        ["descending", downward],
        [None, written],
    ]
