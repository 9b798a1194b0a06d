"""DeepSeek's published day: its economics exactly, and the fleet that a plan of it requires
(B15)."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.experiments.plan.candidates import asked
from scenarios.experiments.plan.find import targeted
from scenarios.experiments.plan.question import ask
from tests.published import deepseek_day as day
from tests.published.rows import met


def test_the_days_economics_are_exact() -> None:
    rows = day.economics()
    assert met(rows) == "3 of 3"
    assert [round(row.ours) for row in rows] == [87_072, 562_100, 545]


def test_the_mean_request_has_the_days_ratios_and_kv_length() -> None:
    prompt, cached, output = day.lengths()
    assert prompt / output == pytest.approx(608 / 168, rel=1e-3)
    assert cached / prompt == pytest.approx(0.563, abs=1e-3)
    assert prompt + output / 2 == pytest.approx(4_989, rel=1e-3)


@pytest.mark.slow
def test_the_days_nodes_are_planned_within_a_quarter() -> None:
    nodes = day.sections()[1].rows
    assert nodes
    assert all(row.is_met for row in nodes)


def test_the_plan_is_of_a_part_of_the_days_load_on_its_own_engines() -> None:
    question_of = asked(day.plan(), {(): "published day"}, folder=Path())
    every = targeted(question_of)
    question = ask(question_of.plan, every[0])
    assert question.level * day.PART * 86_400 * day.lengths()[2] == pytest.approx(168e9, rel=1e-3)
    assert [one.gpus_by_name(1)["H800"] for one in every] == [32 * n + 144 for n in range(1, 7)]
