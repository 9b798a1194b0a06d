"""A what-if: common random numbers, exact accounts, products, refusals, and the choice of the
best."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.experiments.whatif.changes import Change
from scenarios.experiments.whatif.comparison import WhatIf
from scenarios.experiments.whatif.figures import KEYS, Run, mean_accounts_ns
from scenarios.experiments.whatif.intervals import num_sections
from scenarios.files.load import parse_scenario
from scenarios.run.simulate import simulate
from sim.accounts import TIME_ACCOUNTS
from sim.errors import PolicyError, ScenarioError
from tests.properties.scenarios import azure_trace
from tests.scenarios.experiments.whatif.samples import (
    FP8_WEIGHTS,
    TENSOR_PARALLEL,
    compared,
    tiny,
    two_changes,
)


def variant(answer: WhatIf, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(v for v in answer.content["variants"] if v["name"] == name)
    return found


def test_every_change_alone_then_all_together() -> None:
    answer = two_changes()
    assert [v.name for v in answer.variants] == ["baseline", "TP 2", "fp8 weights", "all together"]
    together = answer.variants[-1].scenario
    assert together is not None
    assert together.engine.tensor_parallel_size == 2
    assert together.engine.quantization == "fp8"


def test_figures_are_means_over_the_seeds_of_plain_simulations() -> None:
    """Requests and engine equal those of `simulate`, seed by seed."""
    answer = two_changes()
    for name, options in (("baseline", {}), ("TP 2", {"tensor_parallel_size": 2})):
        runs = [
            simulate(parse_scenario(tiny(engine=options, seed=seed, bands=False)))
            for seed in range(3)
        ]
        for key, statistic in (("ttft", "p99"), ("e2e", "mean")):
            values = [run.figure(key, statistic) or math.nan for run in runs]
            assert answer.value(name, f"{key}.{statistic}") == pytest.approx(fmean(values), rel=0)


@pytest.mark.parametrize(("requests", "replications"), [(120, 3), (1_000, 1)])
def test_a_change_of_nothing_has_deltas_of_exactly_zero(requests: int, replications: int) -> None:
    same = Change(name="same", settings={"pool.replicas": 1})
    answer = compared(tiny(requests), same, replications=replications)
    assert variant(answer, "same")["changes_nothing"]
    known = [key for key in KEYS if answer.value("baseline", key) is not None]
    assert "e2e.p99" in known
    for key in known:
        delta, half = answer.delta("same", key)
        assert delta == 0
        assert half in (0, None)
    assert answer.content["answer"]["best"] is None


def test_account_deltas_sum_to_the_delta_of_the_mean_to_the_nanosecond() -> None:
    answer = two_changes()
    for of in ("e2e", "ttft"):
        base = answer.content["baseline"]["accounts_ns"][of]
        base_ns = round(1e9 * (answer.value("baseline", f"{of}.mean") or math.nan))
        for name in ("TP 2", "fp8 weights", "all together"):
            accounts = variant(answer, name)["accounts_ns"][of]
            assert all(type(ns) is int for ns in accounts.values())
            moved_ns = sum(accounts[account] - base[account] for account in TIME_ACCOUNTS)
            after_ns = round(1e9 * (answer.value(name, f"{of}.mean") or math.nan))
            assert moved_ns == sum(accounts.values()) - sum(base.values())
            # Figures are floating-point means of seconds, books exact fractions of ns.
            assert abs(moved_ns - (after_ns - base_ns)) <= 2
        assert abs(sum(base.values()) - base_ns) <= 1


@settings(max_examples=40)
@given(st.lists(st.tuples(*[st.integers(0, 10**12)] * len(TIME_ACCOUNTS)), min_size=1), st.data())
def test_rounded_accounts_keep_their_sum(
    totals: list[tuple[int, ...]], data: st.DataObject
) -> None:
    counts = [data.draw(st.integers(1, 1_000)) for _ in totals]
    runs = [
        Run(
            values={},
            without_each={},
            accounts_ns={"e2e": dict(zip(TIME_ACCOUNTS, parts, strict=True))},
            quantiles_s={},
            counted=count,
            summary={},
        )
        for count, row in zip(counts, totals, strict=True)
        for parts in [[Fraction(total, count) for total in row]]
    ]
    means = mean_accounts_ns(runs, "e2e")
    exact = [sum(run.accounts_ns["e2e"][a] for run in runs) / len(runs) for a in TIME_ACCOUNTS]
    assert sum(means.values()) == round(sum(exact))
    assert all(abs(means[a] - e) < 1 for a, e in zip(TIME_ACCOUNTS, exact, strict=True))


def test_product_is_the_baseline_times_each_ratio() -> None:
    answer = two_changes()
    row = answer.content["together"]["figures"]["e2e.mean"]
    base, one, other, both = (
        answer.value(name, "e2e.mean") or math.nan
        for name in ("baseline", "TP 2", "fp8 weights", "all together")
    )
    assert row["product"] == pytest.approx(one * other / base)
    assert row["delta"] == pytest.approx(both - one * other / base)
    # Both shorten the same reads of weights, so together they gain less: more than the product.
    assert row["delta"] > row["half_width"] > 0


def test_changes_of_one_field_have_no_whole() -> None:
    more = Change(name="TP 4", settings={"engine.tensor_parallel_size": 4})
    answer = compared(tiny(), TENSOR_PARALLEL, more, replications=1)
    assert [v.name for v in answer.variants] == ["baseline", "TP 2", "TP 4"]
    assert (
        "engine.tensor_parallel_size is changed twice"
        in (answer.content["together"]["why_no_variant"])
    )


def test_what_cannot_be_built_is_refused_and_the_others_run() -> None:
    three = Change(name="TP 3", settings={"engine.tensor_parallel_size": 3})
    answer = compared(tiny(), three, FP8_WEIGHTS)
    assert "32 attention heads" in variant(answer, "TP 3")["refused"]
    assert variant(answer, "all together")["refused"] is not None
    assert answer.delta("fp8 weights", "e2e.mean")[0] is not None
    assert answer.content["together"]["why_no_product"] == "TP 3 cannot be run"
    with pytest.raises(KeyError):
        answer.value("TP 3", "e2e.mean")


def test_nothing_left_to_compare_is_an_error() -> None:
    three = Change(name="TP 3", settings={"engine.tensor_parallel_size": 3})
    with pytest.raises(ScenarioError, match=r"no change can be run:\nTP 3: .*attention heads"):
        compared(tiny(), three)
    with pytest.raises(ScenarioError, match="the baseline cannot be run: "):
        compared(tiny(engine={"tensor_parallel_size": 3}), FP8_WEIGHTS)


@pytest.mark.usefixtures("trusts_tmp_path")
def test_a_policy_that_fails_takes_only_its_variant_out(tmp_path: Any) -> None:
    policy = tmp_path / "faulty.py"
    policy.write_text("def schedule(view):\n    raise ValueError('not today')\n")
    faulty = Change(name="faulty", settings={"engine.scheduler": f"{policy}:schedule"}, joins=False)
    answer = compared(tiny(40), faulty, FP8_WEIGHTS)
    assert "not today" in variant(answer, "faulty")["refused"]
    assert variant(answer, "fp8 weights")["refused"] is None
    with pytest.raises((PolicyError, ScenarioError), match="not today"):
        compared(tiny(40, engine={"scheduler": f"{policy}:schedule"}), FP8_WEIGHTS)


def test_a_recorded_trace_runs_once_and_is_cut_into_sections(tmp_path: Any) -> None:
    trace = {"trace": {"path": str(azure_trace(tmp_path / "trace.csv", 1_200, 0.05))}}
    answer = compared(tiny(workload=trace), FP8_WEIGHTS, replications=None)
    method = answer.content["method"]
    assert (method["kind"], method["replications"]) == ("sections", 1)
    assert method["sections"] == num_sections(1_200)
    delta, half = answer.delta("fp8 weights", "e2e.mean")
    assert delta is not None
    assert half is not None
    assert delta < -half < 0
    assert answer.delta("fp8 weights", "e2e.p99")[1] is None  # too few requests for this
    with pytest.raises(ScenarioError, match="are the same whatever the seed"):
        compared(tiny(workload=trace), FP8_WEIGHTS, replications=2)


def test_few_requests_run_once_have_no_intervals() -> None:
    answer = compared(tiny(), FP8_WEIGHTS, replications=1)
    assert answer.content["method"]["kind"] == "none"
    delta, half = answer.delta("fp8 weights", "e2e.mean")
    assert delta is not None
    assert half is None


def test_default_replications_follow_the_size_of_the_workload() -> None:
    few = compared(tiny(20), FP8_WEIGHTS, replications=None)
    assert few.content["method"]["replications"] == 10
    own = compared(tiny(20, replications=4), FP8_WEIGHTS, replications=None)
    assert own.content["method"]["replications"] == 4


def test_latency_decides_where_the_slo_is_met_and_goodput_where_it_is_not() -> None:
    assert two_changes().content["answer"]["figure"] == "e2e.mean"
    assert two_changes().content["answer"]["best"] == "all together"
    strict = compared(tiny(40, slo={"tpot_s": 0.006}), TENSOR_PARALLEL, FP8_WEIGHTS)
    answer = strict.content["answer"]
    assert answer["figure"] == "goodput"
    assert "baseline" in answer["misses_slo"]
    asked = compared(tiny(40), FP8_WEIGHTS, by="ttft.p99")
    assert asked.content["answer"]["figure"] == "ttft.p99"
    with pytest.raises(ScenarioError, match=r"--by gpu_busy: not a figure to be best by"):
        compared(tiny(5), FP8_WEIGHTS, by="gpu_busy", replications=1)


def test_less_to_do_is_not_a_better_way_to_do_it() -> None:
    idle = Change(name="idle", settings={"workload.rate_per_s": 1})
    answer = compared(tiny(60), idle, FP8_WEIGHTS, replications=2)
    assert variant(answer, "idle")["changes_demand"]
    assert answer.content["answer"]["best"] == "fp8 weights"
    assert compared(tiny(60), idle, replications=2).content["answer"]["best"] is None


def test_a_gpu_more_does_not_count_as_a_gain_a_gpu() -> None:
    answer = two_changes()
    assert answer.value("TP 2", "gpus") == 2
    per_gpu = answer.value("TP 2", "saturation_per_gpu")
    assert per_gpu == pytest.approx((answer.value("TP 2", "saturation") or math.nan) / 2)
    assert answer.content["answer"]["best_per_gpu"] == "fp8 weights"


def test_without_targets_there_is_no_attainment_to_compare() -> None:
    answer = compared(tiny(slo={}), FP8_WEIGHTS)
    assert answer.value("baseline", "attainment") is None
    assert answer.value("baseline", "goodput") is None
    assert answer.content["answer"]["figure"] == "e2e.mean"


def test_overload_is_warned_of_with_the_number_of_runs() -> None:
    hot = Change(name="hot", settings={"workload.rate_per_s": 2_000, "engine.max_num_seqs": 2})
    answer = compared(tiny(200), hot)
    codes = {w["code"]: w["runs"] for w in variant(answer, "hot")["warnings"]}
    assert codes["near_saturation"] == 3
    assert "near_saturation" not in {w["code"] for w in answer.content["baseline"]["warnings"]}


@pytest.mark.slow
def test_content_is_the_same_on_any_number_of_processes() -> None:
    assert json.dumps(two_changes().content) == json.dumps(
        compared(tiny(), TENSOR_PARALLEL, FP8_WEIGHTS, jobs=2).content
    )
