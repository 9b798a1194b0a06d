"""Terminal text and page of a plan, with a fleet, without one, and with relaxed limits."""

from __future__ import annotations

import io
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from reports.document import Cell
from reports.html import render_page
from reports.plan.answer import (
    certainty,
    demand_sentence,
    headline,
    model_sentence,
    relaxed_sentences,
    room,
    spare_sentence,
)
from reports.plan.report import candidate_table, plan_report, ranked_table, write_plan_page
from reports.terminal import print_report
from sim.errors import ScenarioError
from tests.reports.html_page import Page

ENGINE = {"role": "mixed", "replicas": 3, "gpu": "H100", "gpus": 2, "layout": "TP 2"}
FLEET: dict[str, Any] = {
    "name": "H100 TP 2, cache_dtype fp8",
    "units": 3,
    "spare": 0,
    "engines": [ENGINE],
    "options": {"kv.cache_dtype": "fp8"},
    "gpus": 6,
    "usd_per_h": 15.0,
    "usd_per_month": 10950.0,
}
BINDING = {
    "sentence": "TPOT binds: decodes wait for others' prefill (60% of TPOT of the slowest).",
    "advice": "Less prefill beside the decodes is what helps.",
    "metric": "tpot",
    "cause": "others_prefill",
}
RANKED: dict[str, Any] = FLEET | {
    "usd_per_million_tokens": 0.25,
    "attained": [
        {"share": 0.999, "lowest": 0.998, "value_s": 0.2, "of_target": 0.4},
        {"share": 0.96, "lowest": 0.955, "value_s": 0.029, "of_target": 0.97},
    ],
    "worst": 1,
    "capacity": 55.0,
    "interval": [53.0, 57.0],
    "limit": "slo",
    "at_least": None,
    "headroom": 0.1,
    "binding": BINDING,
    "curve": [],
    "degraded": {},
}


def candidate(name: str, stage: str, **more: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": name,
        "stage": stage,
        "why": "",
        "unit": "replica",
        "unit_gpus": 2,
        "units": None,
        "usd_per_h": None,
        "least_units": 2,
        "least_usd_per_h": 10.0,
        "most_units": 8,
        "limit": "available H100",
        "refused": None,
        "tried": None,
        "alone": False,
        "missed": None,
    }
    return row | more


def missed(units: int, **more: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "units": units,
        "usd_per_h": 5.0 * units,
        "target": 1,
        "why": "share",
        "share": 0.8,
        "account": "others_prefill",
    }
    return row | more


CONTENT: dict[str, Any] = {
    "schema": "fleetcast.plan/1",
    "fleetcast_version": "0.1",
    "question": {
        "unit": "requests/s",
        "now": 25.0,
        "growth_per_year": 0.6,
        "years": 1.0,
        "peak": 1.25,
        "level": 50.0,
        "targets": [
            {"of_class": None, "metric": "ttft", "share": 0.99, "within_s": 0.5},
            {"of_class": "chat", "metric": "tpot", "share": 0.95, "within_s": 0.03},
        ],
        "confidence": 0.95,
        "replications": 19,
        "fixed": False,
        "requests": 5000,
        "prompt_tokens": 1000.0,
        "output_tokens": 200.0,
        "budget_usd_per_h": None,
        "gpus": [
            {
                "gpu": "H100",
                "usd_per_gpu_h": 2.5,
                "available": 16,
                "date": "2026-11",
                "source": "a quote",
            }
        ],
    },
    "counts": {
        "fits": FLEET | {"units": 1, "gpus": 2, "engines": [ENGINE | {"replicas": 1}]},
        "cheapest": FLEET,
        "spare": FLEET | {"spare": 1, "gpus": 8, "engines": [ENGINE | {"replicas": 4}]},
    },
    "ranked": [RANKED],
    "candidates": [
        candidate("kept", "ranked", units=3, usd_per_h=15.0, tried=2, missed=missed(2)),
        candidate("dear", "cost", least_units=9, least_usd_per_h=45.0),
        candidate("dearer", "simulated", tried=5, missed=missed(5)),
        candidate("few", "simulated", tried=8, missed=missed(8, share=None, account=None)),
        candidate("alone", "simulated", tried=6, alone=True, missed=missed(6, why="queue")),
        candidate("unsure", "simulated", tried=5, missed=missed(5, why="confidence")),
        candidate("short", "supply", least_units=9),
        candidate("slow", "latency", refused={"target": 0, "least_s": 0.8}),
        candidate("long", "latency", refused={"target": 0, "least_s": None}),
        candidate("large", "memory", why="it does not fit <H100>"),
    ],
    "fleets": [
        {
            "name": FLEET["name"],
            "units": units,
            "gpus": 2 * units,
            "usd_per_h": 5.0 * units,
            "of_target": 2.91 / units,
            "target": 1,
            "runs": 1,
            "on_front": True,
        }
        for units in (3, 4)
    ],
    "relaxed": None,
    "sampled": None,
    "winner": {
        "scenario": "model: llama-3.1-8b\n",
        "commands": [
            {
                "pool": "",
                "role": "mixed",
                "replicas": 3,
                "gpu": "H100",
                "engine": engine,
                "version": "1",
                "command": f"{engine} serve llama",
                "unsaid": {"engine.host_speed_factor": 2.0, "pool.replicas": 3},
            }
            for engine in ("vllm", "sglang")
        ],
    },
    "conditions": {
        "model": "llama-3.1-8b",
        "workload": "preset azure-conv (seed 0)",
        "seed": 0,
        "requests": 5000,
        "skipped": 500,
        "notes": ["a note"],
    },
    "evidence": {
        "shares": {"fitted": 0.9, "extrapolated": 0.1},
        "label": "extrapolated",
        "half_width": 0.2,
    },
    "method": "A method.",
    "run": {"requests": 123_456, "fleets": 7, "candidates": 10, "wall_s": 1.0},
}


def infeasible(**relaxed: Any) -> dict[str, Any]:
    content = deepcopy(CONTENT)
    content["ranked"], content["winner"], content["fleets"] = [], None, []
    content["counts"] |= {"cheapest": None, "spare": None}
    content["evidence"] = {"shares": {}, "label": None, "half_width": None}
    row: dict[str, Any] = {
        "nearest": None,
        "least_s": None,
        "without_limits": None,
        "needs": {},
        "load": None,
    }
    content["relaxed"] = row | relaxed
    return content


SUPPLY: dict[str, Any] = {
    "constraint": "supply",
    "nearest": candidate("near", "simulated"),
    "without_limits": FLEET,
    "needs": {"H100": 24},
    "load": 31.0,
}


def printed(content: dict[str, Any]) -> str:
    stream = io.StringIO()
    print_report(plan_report(content), Console(file=stream, width=100))
    return stream.getvalue()


def test_the_answer_comes_first_in_plain_words() -> None:
    assert headline(CONTENT) == (
        "The cheapest fleet for 50.0 requests/s is 6 \N{MULTIPLICATION SIGN} H100 (3 replicas of "
        "TP 2, kv cache_dtype fp8): $15.00 an hour. It meets TTFT p99 ≤ 500 ms, chat TPOT p95 ≤ "
        "30 ms."
    )
    assert demand_sentence(CONTENT) == (
        "50.0 requests/s is 25.0 requests/s today, +60% a year for a year and a peak of 1.25 times "
        "the mean."
    )
    assert certainty(CONTENT) == (
        "With 95% confidence another 5,000 requests would meet them too. Nearest to its limit is "
        "chat TPOT p95: 96% keep within 30 ms, 95% must, and in the worst run 95.5% do."
    )
    assert room(CONTENT).startswith("It carries up to 55.0 requests/s, 10% more than planned for.")
    assert model_sentence(CONTENT) == (
        "Step times may be off by ±20% (90%): their evidence is extrapolated, and that is more "
        "than the headroom: measure before you buy, or plan for more."
    )
    assert spare_sentence(CONTENT).endswith("with a replica down.")
    (row,) = ranked_table(CONTENT).rows
    assert row[1:] == ("3", "6", "$15.00", "+10%", "TPOT", "others' prefill")


def test_every_candidate_is_told_why_in_its_own_words() -> None:
    rows = candidate_table(CONTENT).rows
    told = {row[0]: (stage.text, row[2]) for row in rows if isinstance(stage := row[1], Cell)}
    assert told == {
        "kept": (
            "kept",
            "3 replicas meet the targets, $15.00/h; 2 replicas miss chat TPOT p95 (80% within "
            "30 ms): others' prefill",
        ),
        "dear": ("dearer", "9 replicas needed at least, by the GPU time of the requests: $45.00/h"),
        "dearer": (
            "dearer",
            "5 replicas, the most that would be cheaper, miss chat TPOT p95 (80% within 30 ms): "
            "others' prefill",
        ),
        "few": (
            "not to be had",
            "8 replicas, all that can be had (available H100), miss chat TPOT p95 by far",
        ),
        "alone": (
            "misses",
            "6 replicas, with engines to themselves, have queues that grow: others' prefill",
        ),
        "unsure": (
            "dearer",
            "5 replicas, the most that would be cheaper, meet chat TPOT p95, but not surely: "
            "others' prefill",
        ),
        "short": (
            "not to be had",
            "9 replicas needed at least, by the GPU time of the requests; 8 to be had "
            "(available H100)",
        ),
        "slow": (
            "too slow",
            "TTFT p99 is at least 800 ms on idle engines, and must keep within 500 ms",
        ),
        "long": ("too slow", "TTFT p99: too many requests are longer than an engine takes"),
        "large": ("cannot run", "it does not fit <H100>"),
    }


@pytest.mark.parametrize(
    ("relaxed", "told"),
    [
        (
            SUPPLY,
            "Availability binds: it would take 24 H100, and 16 are to be had. Without these limits "
            "6 \N{MULTIPLICATION SIGN} H100 (3 replicas of TP 2, kv cache_dtype fp8) would do, "
            "$15.00/h. With what can be had, near carries 31.0 requests/s.",
        ),
        (
            {
                "constraint": "latency",
                "nearest": CONTENT["candidates"][7],
                "least_s": [0.8, 0.01],
            },
            "TTFT p99 ≤ 500 ms binds: even alone on idle engines, requests take 800 ms on slow",
        ),
        (
            {"constraint": "latency", "nearest": CONTENT["candidates"][8], "least_s": [None, 0.1]},
            "TTFT p99 ≤ 500 ms binds: too many requests are longer than an engine takes (long)",
        ),
        ({"constraint": "memory"}, "Memory binds: no candidate can be built."),
        (
            {"constraint": "targets", "nearest": CONTENT["candidates"][4]},
            "chat TPOT p95 ≤ 30 ms binds: alone misses it even when requests have engines to "
            "themselves (with 6).",
        ),
    ],
)
def test_what_binds_and_what_relaxes_it_is_said(relaxed: dict[str, Any], told: str) -> None:
    content = infeasible(**relaxed)
    assert " ".join(relaxed_sentences(content)).startswith(told)
    assert headline(content).startswith("No fleet meets the targets")
    assert told[:40] in " ".join(printed(content).split())


def test_a_budget_that_binds_is_named() -> None:
    content = infeasible(**SUPPLY | {"needs": {"H100": 6}, "load": None})
    content["question"]["budget_usd_per_h"] = 10.0
    assert relaxed_sentences(content)[0] == (
        "The budget binds: the cheapest fleet that meets the targets costs $15.00 an hour, and "
        "$10.00 are allowed."
    )


def test_the_terminal_shows_the_tables_and_commands() -> None:
    text = printed(CONTENT)
    for part in (
        "Fewest that hold the model",
        "With N+1",
        "Why each candidate was kept or dropped",
        "vllm serve llama",
        "123,456 requests simulated",
    ):
        assert part in text


@pytest.mark.parametrize("content", [CONTENT, infeasible(**SUPPLY)], ids=["fleet", "none"])
def test_the_page_is_whole_and_the_same_every_time(content: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(content))
    (tmp_path / "plan.yaml").write_text("scenario: <a.yaml>\n")
    text = write_plan_page(tmp_path).read_text()
    page = Page(text)
    assert not page.open
    assert page.all("script") == [{}]
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert text == render_page(plan_report(content, "scenario: <a.yaml>\n"))
    assert "it does not fit &lt;H100&gt;" in text
    assert ("plan-front" in text) == bool(content["fleets"])
    assert ("No flag of this version says engine.host_speed_factor: 2.0." in text) == bool(
        content["winner"]
    )


def test_a_folder_without_a_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="no readable plan"):
        write_plan_page(tmp_path)
    (tmp_path / "plan.json").write_text('{"schema": "other"}')
    with pytest.raises(ScenarioError, match="run `fleetcast plan` again"):
        write_plan_page(tmp_path)
