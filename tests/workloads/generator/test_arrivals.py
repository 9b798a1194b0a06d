"""Arrivals beyond one renewal process: drift, bursts and silences, clients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from sim.errors import ScenarioError
from workloads.generator.arrivals import (
    Arrivals,
    Clients,
    arrival_times_s,
    client_cvs,
    stationary_gaps,
    unit_gaps,
    weibull_cv,
    weibull_shape,
    zipf_exponent,
    zipf_shares,
)
from workloads.generator.distributions import Durations, Lognormal, exponential_s, fixed_s, mean_s
from workloads.generator.rate_changes import Drift, OnOff, drifted, named_drift, sine

BURSTY = OnOff(on_s=exponential_s(30.0), off_s=fixed_s(60.0))
CLIENTS = Clients(shares=zipf_shares(40, 1.2), cv={50: 1.0, 90: 4.0})
SHAPED = {
    "drift": Arrivals(requests_per_s=5.0, drift=sine(0.4, 1800.0)),
    "drift from noon": Arrivals(requests_per_s=5.0, drift=named_drift("ragpulse", 43_200.0)),
    "bursts": Arrivals(requests_per_s=5.0, on_off=BURSTY),
    "gamma bursts with drift": Arrivals(
        process="gamma", cv=1.5, requests_per_s=5.0, on_off=BURSTY, drift=sine(0.4, 1800.0)
    ),
    "clients": Arrivals(process="gamma", requests_per_s=5.0, clients=CLIENTS),
    "weibull clients with drift": Arrivals(
        process="weibull", requests_per_s=5.0, clients=CLIENTS, drift=sine(0.4, 1800.0)
    ),
}


def times(arrivals: Arrivals, n: int, seed: int = 0) -> np.ndarray:
    return arrival_times_s(arrivals, n, seed)[0]


@pytest.mark.parametrize("arrivals", SHAPED.values(), ids=SHAPED)
def test_the_first_do_not_depend_on_how_many_follow(arrivals: Arrivals) -> None:
    short, clients = arrival_times_s(arrivals, 300, 3)
    longer, more_clients = arrival_times_s(arrivals, 4000, 3)
    assert np.array_equal(short, longer[:300])
    assert (np.diff(longer) >= 0).all()
    assert longer[0] >= 0
    if clients is not None and more_clients is not None:
        assert np.array_equal(clients, more_clients[:300])


@pytest.mark.parametrize("name", ["drift", "bursts", "clients"])
def test_the_mean_rate_is_kept(name: str) -> None:
    rates = [20_000 / times(SHAPED[name], 20_000, seed)[-1] for seed in range(5)]
    assert np.mean(rates) == pytest.approx(5.0, rel=0.04)


@st.composite
def drifts(draw: st.DrawFn) -> Drift:
    factors = draw(st.lists(st.sampled_from([0.0, 0.1, 1.0, 3.0, 7.5]), min_size=1, max_size=9))
    return Drift(
        factors=(*factors, 1.0),
        period_s=draw(st.sampled_from([0.7, 60.0, 86_400.0])),
        start_s=draw(st.floats(0, 2e5)),
    )


@given(drift=drifts(), operational_s=st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
def test_drift_is_the_inverse_of_the_integrated_rate(
    drift: Drift, operational_s: list[float]
) -> None:
    wanted = np.sort(operational_s)
    real = drifted(wanted, drift)
    factors = np.array(drift.factors) / np.mean(drift.factors)
    step_s = drift.period_s / len(factors)

    def integrated(t_s: np.ndarray) -> np.ndarray:
        periods, within = np.divmod(t_s, drift.period_s)
        ends = np.concatenate(([0.0], np.cumsum(factors) * step_s))
        return periods * drift.period_s + np.interp(
            within, np.arange(len(factors) + 1) * step_s, ends
        )

    start_s = drift.start_s % drift.period_s
    back = integrated(real + start_s) - integrated(np.array([start_s]))
    # A nanosecond of a run of days, at the highest of these rates.
    np.testing.assert_allclose(back, wanted, rtol=1e-9, atol=1e-6 * max(1.0, drift.period_s))


def test_drift_follows_its_profile() -> None:
    hours = named_drift("m-small")
    arrivals = Arrivals(process="constant", requests_per_s=0.5, drift=hours)
    counts = np.bincount((times(arrivals, 43_200) // 3600).astype(int), minlength=24)
    assert counts.max() / counts.min() == pytest.approx(1.46 / 0.66, rel=0.01)
    assert np.corrcoef(counts, hours.factors)[0, 1] > 0.999


def test_rates_are_compared_on_the_same_gaps_and_the_same_bursts() -> None:
    slow, fast = (times(Arrivals(requests_per_s=r, on_off=BURSTY), 3000) for r in (2.0, 8.0))
    # All of the faster ones fall into the bursts that the slower ones show.
    long_silences = np.flatnonzero(np.diff(slow) >= 60.0)
    for before in long_silences[:20]:
        inside = (fast > slow[before] + 30.0) & (fast < slow[before + 1] - 30.0)
        assert not inside.any()
    renewal = [
        times(
            replace(SHAPED["gamma bursts with drift"], on_off=None, drift=None, requests_per_s=r),
            50,
        )
        for r in (1.0, 2.0)
    ]
    np.testing.assert_allclose(renewal[0], 2 * renewal[1])


def test_bursts_and_silences_last_as_long_as_said() -> None:
    on_off = OnOff(
        on_s=fixed_s(20.0),
        off_s=Durations(components=(Lognormal(mu=4.6, sigma=0.2),), min_s=80.0, max_s=150.0),
    )
    gaps = np.diff(times(Arrivals(requests_per_s=20.0, on_off=on_off), 50_000))
    silences = gaps[gaps > 40]
    assert silences.min() >= 80.0
    assert silences.mean() == pytest.approx(mean_s(on_off.off_s), rel=0.05)
    in_bursts = gaps[gaps < 40].mean()
    assert in_bursts == pytest.approx(on_off.on_fraction / 20.0, rel=0.05)


def test_a_poisson_process_in_bursts_has_the_index_of_dispersion_it_should() -> None:
    """An interrupted Poisson process, in windows far longer than its bursts and silences."""
    on_s, off_s, rate = 10.0, 30.0, 4.0
    on_off = OnOff(on_s=exponential_s(on_s), off_s=exponential_s(off_s))
    arrival_s = times(Arrivals(requests_per_s=rate, on_off=on_off), 400_000)
    window_s = 1000.0
    counts = np.bincount((arrival_s // window_s).astype(int))[:-1]
    # The variance of the integrated rate grows as 2 (rate in bursts)^2 p (1 - p) tau t.
    share, relaxation_s = on_s / (on_s + off_s), on_s * off_s / (on_s + off_s)
    expected = 1 + 2 * rate * (1 - share) / share * relaxation_s
    assert counts.var() / counts.mean() == pytest.approx(expected, rel=0.2)


@given(cv=st.floats(0.02, 50))
def test_weibull_shapes_have_their_cv(cv: float) -> None:
    assert weibull_cv(weibull_shape(cv)) == pytest.approx(cv, rel=1e-6)


def test_weibull_gaps_are_the_distribution_of_their_shape() -> None:
    gaps = unit_gaps("weibull", np.random.default_rng(0), 200_000, weibull_cv(0.7))
    assert gaps.mean() == pytest.approx(1.0, rel=0.01)
    median = math.log(2) ** (1 / 0.7) / math.gamma(1 + 1 / 0.7)
    assert np.median(gaps) == pytest.approx(median, rel=0.01)


@pytest.mark.parametrize("process", ["poisson", "gamma", "weibull", "constant"])
def test_a_process_in_the_midst_of_its_life_has_its_rate_from_the_start(process: str) -> None:
    """The first gap is what is left of one that covers 0: its mean is (1 + CV^2) / 2."""
    cv = {"poisson": 1.0, "constant": 0.0}.get(process, 3.0)
    firsts = np.array(
        [
            stationary_gaps(process, np.random.default_rng(i), 2, max(cv, 0.01))[0]
            for i in range(6000)
        ]
    )
    assert firsts.mean() == pytest.approx((1 + cv**2) / 2, rel=0.15)


def test_clients_have_their_shares_and_their_variability() -> None:
    shares = zipf_shares(200, zipf_exponent(200, 10, 0.8))
    assert sum(shares[:10]) == pytest.approx(0.8, abs=1e-6)
    clients = Clients(shares=shares, cv={50: 1.2, 75: 2.2, 90: 7.0})
    arrival_s, client = arrival_times_s(
        Arrivals(process="gamma", requests_per_s=100.0, clients=clients), 100_000, 1
    )
    assert client is not None
    assert np.mean(client < 10) == pytest.approx(0.8, rel=0.05)
    cvs = client_cvs(clients, 1)
    for one in range(3):
        gaps = np.diff(arrival_s[client == one])
        assert gaps.std() / gaps.mean() == pytest.approx(cvs[one], rel=0.2)
        assert 1 / gaps.mean() == pytest.approx(100.0 * shares[one], rel=0.3)


def test_clients_cvs_are_spread_by_their_load() -> None:
    clients = Clients(shares=zipf_shares(1000, 0.9), cv={25: 1.0, 50: 2.0, 75: 4.0})
    cvs, shares = client_cvs(clients, 5), np.array(clients.shares)
    order = np.argsort(cvs)
    load = np.cumsum(shares[order])
    for percent, cv in clients.cv.items():
        assert cvs[order][np.searchsorted(load, percent / 100)] == pytest.approx(cv, rel=0.1)


def test_one_large_bursty_client_does_not_vanish_among_many() -> None:
    """Many small clients together tend to a Poisson process; with one large client they do not."""
    cvs = []
    for shares in ((1.0,) * 400, (400.0, *(1.0,) * 400)):
        clients = Clients(shares=shares, cv={50: 2.5})
        arrivals = Arrivals(process="weibull", requests_per_s=50.0, clients=clients)
        gaps = np.diff(times(arrivals, 40_000))
        cvs.append(gaps.std() / gaps.mean())
    assert cvs[0] == pytest.approx(1.0, abs=0.1)
    assert cvs[1] > 1.3


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "profile": (lambda: named_drift("mars"), "unknown drift profile 'mars'; known: azure-conv"),
    "all 0": (lambda: Drift(factors=(0.0, 0.0), period_s=1.0), "nothing would ever arrive"),
    "negative": (lambda: Drift(factors=(1.0, -1.0), period_s=1.0), "at least 0"),
    "period": (lambda: Drift(factors=(1.0,), period_s=0.0), "a period above 0"),
    "amplitude": (lambda: sine(1.5, 60.0), "amplitude is 1.5; expected 0 to 1"),
    "no burst": (lambda: OnOff(on_s=fixed_s(0.0), off_s=fixed_s(1.0)), "longer than 0 s"),
    "no clients": (lambda: Clients(shares=(), cv={50: 1.0}), "0 clients; expected 1"),
    "no share": (lambda: Clients(shares=(0.0,), cv={50: 1.0}), "not all 0"),
    "cv": (lambda: Clients(shares=(1.0,), cv={50: 0.0}), "cv of clients"),
    "cv order": (lambda: Clients(shares=(1.0,), cv={50: 2.0, 90: 1.0}), "has the lower value"),
    "top share": (lambda: zipf_exponent(20, 10, 0.4), "equal clients have"),
    "at once": (
        lambda: Arrivals(process="all-at-once", clients=CLIENTS),
        "have no clients, bursts or drift",
    ),
    "times": (lambda: Durations(min_s=2.0, max_s=1.0), "expected 0 <= min <= max"),
    "from 0": (lambda: Durations(min_s=0.0, max_s=1.0), "need a min above 0"),
}


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=BAD)
def test_bad_arrivals(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        call()
