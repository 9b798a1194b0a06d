"""Targets on gaps between tokens: of a run, of its classes, of a plan."""

from __future__ import annotations

import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scenarios.experiments.plan.candidates import asked
from scenarios.experiments.plan.find import find_plan
from scenarios.files.load import parse_scenario
from scenarios.run.simulate import simulate
from sim.books.metrics import GAPS
from tests.scenarios.experiments.plan.samples import PLAN


@pytest.mark.parametrize("of", GAPS)
def test_targets_on_gaps_are_of_each_requests_own_tokens(of: str) -> None:
    """Every request's own gaps, from the times of its tokens, against a plain calculation."""
    result = simulate(
        parse_scenario(
            {
                "model": "llama-3.1-8b",
                "workload": {
                    "generator": {
                        "input_tokens": {"lognormal": [[1, 6.5, 0.8]], "max": 4000},
                        "output_tokens": {"lognormal": [[1, 2.5, 0.9]], "max": 80},
                    },
                    "rate_per_s": 12,
                    "num_requests": 60,
                },
                "slo": {"itl_s": 0.02, "itl_of": of},
            }
        )
    )
    met, itl_s = result.metrics.met["itl"], result.metrics.itl_s
    for request in range(60):
        gaps_s = np.sort(np.diff(result.token_times_s(request)))
        if not len(gaps_s):
            assert np.isnan(itl_s[request])
            assert met[request]
            continue
        if of == "longest_tenth":
            expected = gaps_s[-math.ceil(len(gaps_s) / 10) :].mean()
        else:
            share = 1.0 if of == "max" else int(of[1:]) / 100
            expected = gaps_s[math.ceil(share * len(gaps_s) - 1e-9) - 1]
        assert itl_s[request] == pytest.approx(expected)
        assert met[request] == (itl_s[request] <= 0.02)
    assert result.summary["slo"]["by_target"]["itl"] == pytest.approx(met.mean())


def test_a_class_has_gaps_of_its_own() -> None:
    def one(name: str, **slo: Any) -> dict[str, Any]:
        lengths = {"input_tokens": {"fixed": 500}, "output_tokens": {"fixed": 20}}
        return {"name": name, "slo": slo, "generator": lengths, "rate_per_s": 4, "num_requests": 30}

    classes = [one("tight", itl_s=1e-6, itl_of="p50"), one("as all")]
    values = {"model": "llama-3.1-8b", "workload": {"classes": classes}, "slo": {"itl_s": 10.0}}
    tight, other = simulate(parse_scenario(values)).summary["classes"]
    assert (tight["by_target"]["itl"], other["by_target"]["itl"]) == (0.0, 1.0)
    assert (tight["targets"]["itl_s"], other["targets"]["itl_s"]) == (1e-6, 10.0)


def test_a_plan_keeps_gaps_too() -> None:
    def usd_per_h(within_s: float) -> float:
        gaps = {"metric": "itl", "itl_of": "longest_tenth", "within_s": within_s, "percentile": 90}
        plan = deepcopy(PLAN) | {"targets": [PLAN["targets"][0], gaps]}
        found = find_plan(asked(plan, {(): "test"}, folder=Path()), jobs=1)
        assert found["question"]["targets"][1]["itl_of"] == "longest_tenth"
        return float(found["ranked"][0]["usd_per_h"])

    assert usd_per_h(1.0) < usd_per_h(0.025)
