"""What stands beside a plan: today's fleet, the fleet by quarter, and whether features pay."""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from reports.plan.answer import feature_sentences, today_sentence
from scenarios.experiments.plan.candidates import asked
from scenarios.experiments.plan.find import find_plan
from scenarios.schema.plan import Demand
from sim.errors import ScenarioError
from tests.scenarios.experiments.plan.samples import PLAN


def found(**more: Any) -> dict[str, Any]:
    return find_plan(asked(deepcopy(PLAN) | more, {(): "test"}, folder=Path()), jobs=1)


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    options = {"engine.quantization": [None, "fp8"], "engine.max_num_batched_tokens": [8192]}
    return found(
        options=options,
        fleet={"gpu": "H100", "replicas": 1, "options": {"engine.max_num_batched_tokens": 8192}},
        gpus=[PLAN["gpus"][0]],
    )


def test_todays_fleet_is_judged_at_both_loads(content: dict[str, Any]) -> None:
    row = content["today"]
    assert row["gpus"] == 1
    assert row["usd_per_month"] == pytest.approx(2.5 * 730)
    assert row["now"]["level"] == pytest.approx(40 * 1.2)
    assert row["planned"]["level"] == content["question"]["level"] == pytest.approx(72)
    assert row["now"]["kept"] >= row["planned"]["kept"]
    text = today_sentence(content)
    assert "1 \N{MULTIPLICATION SIGN} H100" in text
    assert "a month" in text
    assert "72.0 requests/s" in text


def test_the_fleet_grows_with_its_load(content: dict[str, Any]) -> None:
    rows = content["growth"]
    assert [row["years"] for row in rows] == [0, 0.25, 0.5, 0.75, 1]
    assert rows[0]["level"] == pytest.approx(48)
    assert rows[-1]["level"] == pytest.approx(72)
    assert rows[-1]["units"] == content["ranked"][0]["units"]
    assert rows[-1]["usd_per_month"] == pytest.approx(content["ranked"][0]["usd_per_month"])
    assert all(a["units"] <= b["units"] for a, b in pairwise(rows))
    assert [row["is_simulated"] for row in rows] == [False] * 4 + [True]


def test_features_are_compared_where_both_sides_were_tried(content: dict[str, Any]) -> None:
    by_name = {row["name"]: row for row in content["features"]}
    assert set(by_name) == {"separate prefill and decode", "prefix caching", "fp8", "speculation"}
    assert by_name["fp8"]["with"]["usd_per_h"] <= by_name["fp8"]["without"]["usd_per_h"]
    assert "does not say which prompts share prefixes" in by_name["prefix caching"]["otherwise"]
    said = feature_sentences(content)
    assert len(said) == 4
    assert said[2].startswith(("fp8 pays:", "fp8 changes nothing:", "fp8 cannot be ranked:"))
    assert "layouts:" in said[0]


@pytest.mark.parametrize("growth", [{"growth_per_quarter": 0.25}, {"growth_per_month": 0.1}])
def test_growth_is_compounded(growth: dict[str, float]) -> None:
    demand = Demand(now=10, years=0.5, **growth)
    factor = 1.25**2 if "growth_per_quarter" in growth else 1.1**6
    assert demand.level(10, 0.5) == pytest.approx(10 * factor)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"demand": {"growth_per_year": 1, "growth_per_month": 0.1}},
            "give one of growth_per_month",
        ),
        ({"fleet": {"gpu": "H200", "replicas": 2}}, "fleet: gpu must be one of gpus"),
        ({"fleet": {"gpu": "H100"}}, "replicas"),
    ],
)
def test_wrong_questions_are_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        _ = asked(deepcopy(PLAN) | more, {(): "test"}, folder=Path())
