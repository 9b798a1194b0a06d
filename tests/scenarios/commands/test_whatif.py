"""``fleetcast whatif`` as a user sees it: its output, its files, and its refusals."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from reports.html import render_page
from reports.terminal import print_report
from reports.whatif.report import read_whatif, whatif_report
from scenarios.commands import app
from scenarios.commands.whatif import write_whatif
from scenarios.experiments.whatif.changes import Change
from scenarios.files.load import load_scenario
from sim.errors import ScenarioError
from tests.properties.scenarios import write
from tests.scenarios.experiments.whatif.samples import FP8_WEIGHTS, compared, tiny, two_changes

TWO_SETS = ("--set", "engine.tensor_parallel_size=2", "--set", "kv.cache_dtype=fp8")


@pytest.fixture(autouse=True)
def _in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*args: object) -> Result:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def fails(*args: object) -> str:
    result = run("whatif", *args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return str(result.stderr)


def printed(content: dict[str, Any], encoding: str = "utf-8", width: int = 110) -> str:
    buffer = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_report(whatif_report(content), Console(file=buffer, width=width, highlight=False))
    buffer.seek(0)
    return buffer.read()


@pytest.fixture
def scenario() -> Path:
    return write(Path("tiny.yaml"), tiny(60))


def test_text_has_the_answer_the_table_and_how_sure_it_is(scenario: Path) -> None:
    result = run("whatif", scenario, *TWO_SETS, "--jobs", 1, "--replications", 3)
    assert result.exit_code == 0, result.stderr
    text = result.stdout
    assert text.startswith("tensor_parallel_size=2 is best for E2E mean: ")
    for words in (
        "on 2 GPUs instead of 1",
        "tensor_parallel_size=2",
        "product of",
        "Which accounts of mean end-to-end time moved",
        "decode weight reads",
        "3 replications (seeds 0 to 2",
        "95% t interval of the paired differences",
        "most of the model's own error",
    ):
        assert words in " ".join(text.split())
    ttft = next(line for line in text.splitlines() if line.startswith("TTFT mean"))
    assert re.search(r"-\d+(\.\d)?% ±", ttft)


def test_folder_holds_what_was_printed_and_makes_its_page_again(scenario: Path) -> None:
    args = ("whatif", scenario, *TWO_SETS, "--jobs", 1, "--replications", 2)
    result = run(*args, "--format", "json", "--out", "out")
    content = read_whatif("out")
    assert json.loads(result.stdout) == content
    assert content["schema"] == "fleetcast.whatif/1"
    names = [v["name"] for v in content["variants"]]
    assert names == ["tensor_parallel_size=2", "cache_dtype=fp8", "all together"]
    page = Path("out/whatif.html")
    first = page.read_bytes()
    page.unlink()
    assert run("report", "out").stdout.strip() == "out/whatif.html"
    assert page.read_bytes() == first


def test_scenarios_of_the_folder_run(tmp_path: Path) -> None:
    answer = two_changes()
    write_whatif(answer, tmp_path / "out")
    files = [v["scenario_file"] for v in read_whatif(tmp_path / "out")["variants"]]
    assert files[0] == "scenarios/01-tp-2.yaml"
    for file, variant in zip(files, answer.variants[1:], strict=True):
        assert load_scenario(tmp_path / "out" / file) == variant.scenario


def test_variants_come_from_a_file_too(scenario: Path) -> None:
    write(Path("more.yaml"), {"H100": {"hardware.gpu": "H100"}, "odd": {"kv.block_size": 32}})
    result = run(
        *("whatif", scenario, "--variants", "more.yaml", "--set", "engine.quantization=fp8"),
        *("--name", "fp8", "--jobs", 1, "--replications", 2, "--format", "json"),
    )
    content = json.loads(result.stdout)
    assert [v["name"] for v in content["variants"]] == ["fp8", "H100", "odd"]
    assert content["together"]["figures"] == {}


def test_what_is_wrong_is_said_in_the_users_terms(scenario: Path) -> None:
    assert "nothing to compare" in fails(scenario)
    wrong = fails(scenario, "--set", "engine.tensor_paralel=2")
    assert "--set engine.tensor_paralel=2: engine.tensor_paralel: unknown key" in wrong
    assert "did you mean 'tensor_parallel_size'" in wrong
    assert "no change can be run" in fails(scenario, "--set", "engine.tensor_parallel_size=3")
    assert "seed: all variants share" in fails(scenario, "--set", "seed=3")
    assert "did you mean 'ttft.p99'" in fails(scenario, *TWO_SETS, "--by", "ttft.p98")
    assert "must be at least 1" in fails(scenario, *TWO_SETS, "--replications", 0)
    assert "--open" in fails(scenario, *TWO_SETS, "--open")
    assert "neither text nor json" in fails(scenario, *TWO_SETS, "--format", "xml")


def test_help_says_what_a_set_is() -> None:
    text = " ".join(run("whatif", "--help").stdout.split())
    assert "Each is run alone, and all of them together" in text
    assert "A comma belongs to the value" in text


def test_page_holds_all_it_shows_and_escapes_names() -> None:
    nasty = Change(name="<b>fp8</b> & more", settings={"engine.quantization": "fp8"})
    three = Change(name="TP 3", settings={"engine.tensor_parallel_size": 3}, joins=False)
    content = compared(tiny(60), nasty, three, replications=2).content
    page = render_page(whatif_report(content, {"baseline": "model: <x>"}))
    assert page.startswith("<!DOCTYPE html>")
    assert not re.search(r"<script.+src|<link|https?://(?!www\.w3\.org)", page)
    assert "<b>fp8</b>" not in page
    assert "&lt;b&gt;fp8&lt;/b&gt; &amp; more" in page
    assert "model: &lt;x&gt;" in page
    assert "TP 3 is refused: tensor_parallel_size 3 does not fit" in page
    for name in ("waterfall-e2e", "waterfall-ttft", "whatif-distributions", "whatif-rates"):
        assert f'id="{name}-figure"' in page


def test_the_table_shows_what_was_refused_and_why() -> None:
    three = Change(name="TP 3", settings={"engine.tensor_parallel_size": 3})
    content = compared(tiny(60), three, FP8_WEIGHTS, replications=2).content
    text = printed(content)
    assert "TP 3 is refused: tensor_parallel_size 3 does not fit" in text
    assert "refused" in next(row for row in text.splitlines() if row.startswith("TTFT mean"))


def test_a_change_of_nothing_reads_the_same() -> None:
    same = Change(name="same", settings={"pool.replicas": 1})
    content = compared(tiny(60), same, replications=2).content
    text = printed(content)
    assert text.startswith("No change moves E2E mean")
    assert "same: changes nothing; pool.replicas=1 is so already." in text
    rows = [line.split() for line in text.splitlines() if line.startswith(("TTFT", "Saturation"))]
    assert rows
    assert all(row[-1] == "same" for row in rows)


def test_evidence_and_warnings_of_a_variant_are_seen() -> None:
    hot = Change(name="hot", settings={"workload.rate_per_s": 2_000, "engine.max_num_seqs": 2})
    h100 = Change(name="A100", settings={"hardware.gpu": "A100"})
    content = compared(tiny(200), hot, h100, replications=2).content
    text = " ".join(printed(content).split())
    assert "! hot: The load is" in text
    assert "(in 2 of 2 runs; numbers of the first)" in text
    assert "baseline ! hot" not in text
    evidence = next(line for line in printed(content).splitlines() if line.startswith("evidence"))
    labels = evidence.split()[1:]
    assert labels[0] == content["baseline"]["label"]
    assert labels[2] == content["variants"][1]["label"] != labels[0]


def test_narrow_and_ascii_streams_get_what_they_can_take() -> None:
    text = printed(two_changes().content, encoding="ascii", width=70)
    assert text.isascii()
    assert "+-" in text
    table = text[text.index("TTFT mean") : text.index("Which accounts")]
    assert max(map(len, table.splitlines())) <= 70
    assert table.count("TTFT mean") > 1  # in parts


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "no 'schema' key"),
        ('{"schema": "fleetcast.result/1"}', "this version reads 'fleetcast.whatif/1'"),
        ('{"schema": "fleetcast.whatif/1"}', "lacks method, figures"),
    ],
)
def test_a_folder_that_is_not_a_what_if_says_so(text: str, words: str) -> None:
    Path("whatif.json").write_text(text)
    with pytest.raises(ScenarioError, match=r"Run `fleetcast whatif") as caught:
        read_whatif(".")
    assert words in str(caught.value)
    assert "whatif.json" in str(caught.value)


def test_prefix_caching_is_on_already_and_finds_nothing() -> None:
    caching = Change(name="caching", settings={"kv.enable_prefix_caching": True})
    text = " ".join(printed(compared(tiny(60), caching, replications=2).content).split())
    assert "caching is so already (kv.enable_prefix_caching=true)." in text
    assert "share no prefixes, so nothing can be hit" in text
    shared = tiny(60)
    shared["workload"]["generator"]["system_prompts"] = {"tokens": 64}
    text = " ".join(printed(compared(shared, caching, replications=2).content).split())
    assert "caching is so already" in text
    assert "share no prefixes" not in text


def test_no_product_beyond_what_arrives() -> None:
    """Ratios to a baseline that serves next to nothing in time multiply to nonsense."""
    overloaded = tiny(300, slo={"ttft_s": 0.5})
    overloaded["workload"]["rate_per_s"] = 60
    overloaded["engine"] = {"max_num_seqs": 12}
    more = [
        Change(name="seqs", settings={"engine.max_num_seqs": 256}),
        Change(name="replicas", settings={"pool.replicas": 4}),
    ]
    content = compared(overloaded, *more, by="goodput", replications=3).content
    row = content["together"]["figures"]["goodput"]
    served, arrive = (row["product"] + row["delta"], row["most"])
    assert served <= 1.05 * arrive < row["product"]
    text = " ".join(printed(content).split())
    assert "that arrive: their gains overlap. Simulated, it is" in text
    assert "the product, within the interval" not in text.split("If effects multiplied")[1]
