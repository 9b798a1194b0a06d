"""Intervals of differences: known answers, and how often they cover a known difference.

The case is an M/D/1 queue served at two speeds on equal arrivals. Its mean wait at load rho is rho
/ (2 (1 - rho)) services, so the true difference is a closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from scenarios.experiments.points import run_points, seeded_points, simulated
from scenarios.experiments.whatif.figures import Run, reduce_run
from scenarios.experiments.whatif.intervals import half_width, num_sections, paired, without_each
from scenarios.files.load import parse_scenario
from scenarios.run.execution.workers import Workers
from scenarios.run.simulate import simulate
from scenarios.schema import Scenario

Float = NDArray[np.float64]

REPETITIONS = 400
SCENARIO_REPETITIONS = 50
SLOW_S, FAST_S = 5e-3, 3.5e-3


def difference(base: float, changed: float) -> float:
    return changed - base


def mean_wait_s(service_s: float, rate_per_s: float) -> float:
    """Pollaczek and Khinchine's, of constant services."""
    rho = service_s * rate_per_s
    return service_s * rho / (2 * (1 - rho))


def test_half_width_is_students() -> None:
    values = [1.0, 2.0, 4.0]
    expected = stats.t.ppf(0.975, 2) * np.std(values, ddof=1) / math.sqrt(3)
    assert half_width(values) == pytest.approx(expected)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12))
def test_jackknife_of_a_mean_is_batch_means(values: list[float]) -> None:
    """Means without each batch say what the batches' own means say."""
    without = [(sum(values) - value) / (len(values) - 1) for value in values]
    assert half_width(without, independent=False) == pytest.approx(
        half_width(values), rel=1e-6, abs=1e-6
    )


def test_without_each_section_is_all_but_it() -> None:
    items = np.arange(11)
    kept = without_each(items, 4)
    assert [sorted(set(items) - set(part)) for part in kept] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8],
        [9, 10],
    ]
    assert all((np.diff(part) > 0).all() for part in kept)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, math.nan]])
def test_what_says_nothing_has_no_interval(values: list[float]) -> None:
    assert half_width(values) is None


def test_what_pairs_have_in_common_cancels() -> None:
    """Replications that differ by a thousand and changes of one: no spread is left."""
    base = [1_000.0, 2_000.0, 4_000.0]
    changed = [value + 1 for value in base]
    whole = (float(np.mean(base)), float(np.mean(changed)))
    assert paired(difference, whole, (base, changed), independent=True) == (1.0, 0.0)


def test_a_figure_that_is_missing_somewhere_is_not_compared() -> None:
    parts = ([1.0, 2.0], [1.0, None])
    assert paired(difference, (1.0, None), parts, independent=True) == (None, None)
    assert paired(difference, (1.0, 2.0), parts, independent=True) == (1.0, None)
    assert paired(difference, (1.0, 2.0), ([1.0, 2.0], [1.0]), independent=True) == (1.0, None)


def lindley_s(gaps_s: Float, service_s: float) -> Float:
    """Waits of a queue with constant services; the simulator's are these to the nanosecond.

    `test_queueing` holds it to that, so this stands for thousands of its runs.
    """
    walk = np.concatenate([[0.0], np.cumsum(service_s - gaps_s[1:])])
    waits: Float = walk - np.minimum.accumulate(walk)
    return waits


def waits_of(seed: int, requests: int, rate_per_s: float) -> tuple[Float, Float]:
    """Return the waits of equal arrivals that are served slowly and fast."""
    gaps_s = np.random.default_rng([3, seed]).exponential(1 / rate_per_s, requests)
    return lindley_s(gaps_s, SLOW_S), lindley_s(gaps_s, FAST_S)


def from_replications(repetition: int, rate_per_s: float) -> tuple[float | None, float | None]:
    pairs = [waits_of(repetition * 5 + i, 2_000, rate_per_s) for i in range(5)]
    base, changed = ([float(waits.mean()) for waits in side] for side in zip(*pairs, strict=True))
    whole = (float(np.mean(base)), float(np.mean(changed)))
    return paired(difference, whole, (base, changed), independent=True)


def from_sections(repetition: int, rate_per_s: float) -> tuple[float | None, float | None]:
    sides = waits_of(repetition, 10_000, rate_per_s)
    kept = without_each(np.arange(10_000), num_sections(10_000))
    parts = [[float(side[chosen].mean()) for chosen in kept] for side in sides]
    whole = [float(side.mean()) for side in sides]
    return paired(difference, whole, parts, independent=False)


@pytest.mark.parametrize("method", [from_replications, from_sections])
@pytest.mark.parametrize("load", [0.4, 0.6, 0.8])
def test_intervals_cover_the_true_difference(
    method: Callable[[int, float], tuple[float | None, float | None]], load: float
) -> None:
    """In 90 to 98% of the repetitions, as 95% intervals do."""
    rate_per_s = load / SLOW_S
    true_s = mean_wait_s(FAST_S, rate_per_s) - mean_wait_s(SLOW_S, rate_per_s)
    covered = 0
    for repetition in range(REPETITIONS):
        delta_s, half_s = method(repetition, rate_per_s)
        assert delta_s is not None
        assert half_s is not None
        covered += abs(delta_s - true_s) <= half_s
    assert 0.90 <= covered / REPETITIONS <= 0.98


def one_at_a_time(quantization: str | None, *, rate_per_s: float, requests: int) -> Scenario:
    """A scenario that is an M/D/1 queue: one sequence a step, a host that takes no time."""
    engine = {"max_num_seqs": 1, "async_scheduling": False, "host_speed_factor": 0.01}
    generator = {"input_tokens": {"fixed": 64}, "output_tokens": {"fixed": 1}}
    return parse_scenario(
        {
            "model": "meta-llama/Llama-3.1-8B",
            "engine": engine | {"quantization": quantization},
            "kv": {"enable_prefix_caching": False},
            "workload": {
                "generator": generator,
                "rate_per_s": rate_per_s,
                "num_requests": requests,
            },
            "bands": False,
        }
    )


def service_s(quantization: str | None) -> tuple[float, float]:
    """From one finish to the next of back-to-back requests, and the TTFT of a lone one."""
    busy = simulate(one_at_a_time(quantization, rate_per_s=1e6, requests=300))
    finished_ns = np.sort(np.frombuffer(busy.log.requests.finished_ns, np.int64))
    between_s = np.diff(finished_ns)[1:] / 1e9
    assert between_s.std() < 1e-3 * between_s.mean()  # constant services
    lone = simulate(one_at_a_time(quantization, rate_per_s=0.1, requests=20))
    return float(between_s.mean()), float(lone.metrics.ttft_s.mean())


@pytest.mark.slow
def test_intervals_of_scenarios_cover_the_true_difference() -> None:
    """fp8 weights against bf16 in whole scenarios: both methods, fifty repetitions each."""
    rate_per_s, kinds = 115.0, (None, "fp8")
    answers = {kind: service_s(kind) for kind in kinds}
    wait_s = {kind: mean_wait_s(service, rate_per_s) for kind, (service, _) in answers.items()}
    true_s = wait_s["fp8"] - wait_s[None] + answers["fp8"][1] - answers[None][1]

    def runs(requests: int, seeds: int, with_sections: bool) -> list[list[Run]]:
        run = partial(simulated, reduce=partial(reduce_run, with_sections=with_sections))
        scenarios = [
            one_at_a_time(kind, rate_per_s=rate_per_s, requests=requests) for kind in kinds
        ]
        return [
            run_points(seeded_points(scenario, range(seeds), {}), run, Workers(), memo={})
            for scenario in scenarios
        ]

    def ttft_s(run: Run) -> float:
        value = run.values["ttft.mean"]
        assert value is not None
        return value

    short = runs(1_000, 3 * SCENARIO_REPETITIONS, False)
    long = runs(4_000, SCENARIO_REPETITIONS, True)
    covered = {"replications": 0, "sections": 0}
    for i in range(SCENARIO_REPETITIONS):
        parts = [[ttft_s(run) for run in side[3 * i : 3 * i + 3]] for side in short]
        delta_s, half_s = paired(
            difference, [float(np.mean(part)) for part in parts], parts, independent=True
        )
        assert delta_s is not None
        assert half_s is not None
        covered["replications"] += abs(delta_s - true_s) <= half_s
        delta_s, half_s = paired(
            difference,
            [ttft_s(side[i]) for side in long],
            [side[i].without_each["ttft.mean"] for side in long],
            independent=False,
        )
        assert delta_s is not None
        assert half_s is not None
        covered["sections"] += abs(delta_s - true_s) <= half_s
    print(covered)
    assert all(0.90 <= count / SCENARIO_REPETITIONS <= 0.98 for count in covered.values()), covered
