"""B14: the gain from prefix affinity with a load bound on Mooncake's conversation trace.

The paper's fleet, without its disaggregation: Llama-3-70B on 16 nodes of eight A100-80G (it has the
A800, whose NVLink is slower), its TTFT target of 30 s and the middle one of its three TBT targets.
The trace's clock is sped up until a random router keeps 90% of requests within the SLO; at that
rate the routers are compared on equal requests. No constant is fitted to the outcome.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from scenarios.experiments.whatif.intervals import (
    Estimates,
    num_sections,
    paired,
    values_without_each,
)
from scenarios.files.load import parse_scenario
from scenarios.run.result import RunResult
from scenarios.run.simulate import simulate
from tests.properties.checkout import SHARED
from tests.published.rows import Section

TRACE = SHARED / "data" / "traces" / "mooncake_conversation.jsonl.gz"
BOUNDED = "affinity with a bound"
ROUTERS: dict[str, Any] = {
    BOUNDED: "prefix_affinity",  # its own default bound
    "random": "random",
    "pure affinity": {"name": "prefix_affinity", "load_bound": None},
    "pure load": "least_loaded",
}
MORE: dict[str, Any] = {"least work": "least_work", "conductor": "conductor", "preble": "preble"}
"""Shown for comparison."""
KEYS = {"ttft.p90": "p90 TTFT", "attainment": "SLO attainment"}
_WANTED = 0.90
_SLO = {"ttft_s": 30.0, "tpot_s": 0.2}
_LOW_PER_S, _HIGH_PER_S, _STEPS = 2.0, 8.0, 6


class Outcome(NamedTuple):
    """What is compared of a run."""

    whole: dict[str, float]
    """By key of `KEYS`."""
    without_each: dict[str, Estimates]
    """By key of `KEYS`, without each section of the run."""
    hit_share: float
    overload: float
    """Most prompt tokens that one engine computed, over the mean."""


class Difference(NamedTuple):
    """Difference of the bounded router to another, and the half-width of its 95% paired
    interval."""

    value: float
    half_width: float

    @property
    def is_beyond(self) -> bool:
        """Whether the interval leaves out no difference."""
        return abs(self.value) > self.half_width


def run(router: Any, rate_per_s: float) -> RunResult:
    """The trace at a rate."""
    return simulate(
        parse_scenario(
            {
                "model": "meta-llama/Llama-3.1-70B",
                "hardware": {"gpu": "A100-SXM-80GB"},
                "engine": {"tensor_parallel_size": 8},
                "pool": {"replicas": 16, "router": router},
                "workload": {
                    "trace": {"path": str(TRACE)},
                    "rate_per_s": rate_per_s,
                },
                "slo": _SLO,
                "bands": False,
            }
        )
    )


def outcome(result: RunResult) -> Outcome:
    """What a run comes to."""
    log, metrics = result.log, result.metrics
    without = values_without_each(result, has_slo=True)
    ttft_s = result.figure("ttft", "p90")
    assert ttft_s is not None
    computed = [sum(steps.column("prefill_tokens").tolist()) for steps in log.steps]
    return Outcome(
        whole={"ttft.p90": ttft_s, "attainment": float(metrics.good[metrics.measured].mean())},
        without_each={key: without[key] for key in KEYS},
        hit_share=sum(log.requests.cached_tokens) / int(log.table.prompt_tokens.sum()),
        overload=max(computed) * len(computed) / sum(computed),
    )


def rate_of_random() -> float:
    """Requests/s at which a random router keeps the wanted share, by bisection."""
    low, high = _LOW_PER_S, _HIGH_PER_S
    for _ in range(_STEPS):
        middle = (low * high) ** 0.5
        metrics = run("random", middle).metrics
        if metrics.good[metrics.measured].mean() >= _WANTED:
            low = middle
        else:
            high = middle
    return low


def difference(bounded: Outcome, other: Outcome, key: str) -> Difference:
    """Bounded less the other; sections of the run are left out of both at once."""
    value, half = paired(
        lambda ours, theirs: ours - theirs,
        [bounded.whole[key], other.whole[key]],
        [bounded.without_each[key], other.without_each[key]],
        independent=False,
    )
    assert value is not None
    assert half is not None
    return Difference(value, half)


def compared(rate_per_s: float) -> tuple[dict[str, Outcome], dict[tuple[str, str], Difference]]:
    """Each router's outcome by name, and the bounded one's differences by (name, key)."""
    outcomes = {name: outcome(run(router, rate_per_s)) for name, router in ROUTERS.items()}
    return outcomes, {
        (name, key): difference(outcomes[BOUNDED], other, key)
        for name, other in outcomes.items()
        if name != BOUNDED
        for key in KEYS
    }


def is_better(key: str, found: Difference) -> bool:
    """Whether the bounded router is better in this, beyond the interval."""
    return found.is_beyond and (found.value < 0 if key == "ttft.p90" else found.value > 0)


def sections() -> list[Section]:
    """Each router at the rate of random's 90%, and the differences with their intervals."""
    if not TRACE.exists():
        return [Section("B14 Routing on the Mooncake trace", f"left out: {TRACE} is absent", [])]
    rate_per_s = rate_of_random()
    outcomes, differences = compared(rate_per_s)
    verdicts = [
        f"bounded less {name}, {KEYS[key]}: {of.value:+.4g} ± {of.half_width:.3g} "
        f"({'better, beyond the interval' if is_better(key, of) else 'MISSED: not beyond'})"
        for (name, key), of in differences.items()
    ]
    met = sum(is_better(key, of) for (_, key), of in differences.items())
    return [
        Section(
            "B14 Prefix affinity with a load bound, Mooncake conversation trace, Llama-3.1-70B",
            f"16 engines of 8 x A100-SXM-80GB, TP 8, vLLM's batches; {_SLO}; the trace's clock "
            f"scaled to {rate_per_s:.3g} requests/s, where random keeps {_WANTED:.0%}; bound 1.25 "
            f"(the default); 95% paired intervals over {num_sections(12_000)} sections of the run",
            [],
            (
                *(_line(name, of) for name, of in outcomes.items()),
                *(_line(name, outcome(run(of, rate_per_s))) for name, of in MORE.items()),
                *verdicts,
                f"better beyond the interval in {met} of {len(differences)}",
                "all prompts of the trace begin with the same 512 tokens, so pure affinity sends "
                "every one to the engine that was first",
            ),
        )
    ]


def _line(name: str, of: Outcome) -> str:
    return (
        f"{name}: p90 TTFT {of.whole['ttft.p90']:.4g} s, attainment {of.whole['attainment']:.2%}, "
        f"tokens from cache {of.hit_share:.1%}, busiest engine {of.overload:.2f} times the mean"
    )
