"""Requests drawn from client rates match the recorded number, burstiness and lengths."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sim.errors import ScenarioError, TraceError
from tests.properties.checkout import SHARED
from tests.workloads.readers.trace_samples import SERVEGEN_LENGTHS, write_sample
from workloads.readers.servegen_files import ClientRates, read_client_rates
from workloads.servegen import draw_requests

RATES = SHARED / "data" / "traces" / "servegen_rates.csv.gz"
needs_rates = pytest.mark.skipif(not RATES.exists(), reason="shared/data/traces is not here")


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    return write_sample(tmp_path, "servegen")


def one_client(shape: float, weibull: bool, rate_per_s: float = 100.0) -> ClientRates:
    histogram = (np.array([64]), np.array([76]), np.array([1.0]))
    return ClientRates(
        subset="test",
        client=np.array([0]),
        bin=np.array([0]),
        rate_per_s=np.array([rate_per_s]),
        shape=np.array([shape]),
        is_weibull=np.array([weibull]),
        lengths={0: {"input_tokens": histogram, "output_tokens": histogram}},
        source="test",
    )


def test_files_by_hand(sample: Path) -> None:
    rates = read_client_rates(sample, "big")
    assert rates.client.tolist() == [0, 0, 3]
    assert rates.bin.tolist() == [0, 1, 1]
    assert rates.is_weibull.tolist() == [False, True, False]
    assert rates.duration_s == 1200
    assert list(rates.lengths) == [0]
    low, high, cumulative = rates.lengths[0]["input_tokens"]
    assert low.tolist() == [64, 362]
    assert high.tolist() == [76, 431]  # the next edges of the recording's histogram
    assert cumulative.tolist() == [0.25, 1.0]


def test_as_many_requests_as_were_recorded_and_lengths_inside_their_bins(sample: Path) -> None:
    table = draw_requests(read_client_rates(sample, "big"), seed=1)
    arrival_s = table.arrival_ns / 1e9
    assert (np.diff(arrival_s) >= 0).all()
    assert [int((arrival_s < 600).sum()), int((arrival_s >= 600).sum())] == [300, 150 + 600]
    in_low = (table.prompt_tokens >= 64) & (table.prompt_tokens < 76)
    in_high = (table.prompt_tokens >= 362) & (table.prompt_tokens < 431)
    assert (in_low | in_high).all()
    assert in_low.mean() == pytest.approx(0.25, abs=0.05)
    assert set(table.output_tokens.tolist()) == {7}
    assert "57% of the requests are of clients without recorded lengths" in table.notes[1]


def test_images_count_into_the_prompt(sample: Path) -> None:
    table = draw_requests(read_client_rates(sample, "small"))
    text_only = (table.prompt_tokens >= 27) & (table.prompt_tokens < 32)
    two_images = (table.prompt_tokens >= 27 + 1024) & (table.prompt_tokens < 32 + 2 * 609)
    assert (text_only | two_images).all()
    assert text_only.mean() == pytest.approx(0.5, abs=0.05)


def test_rates_scale_alike_and_streams_stay(sample: Path) -> None:
    rates = read_client_rates(sample, "big")
    table = draw_requests(rates, requests_per_s=8.0, seed=4)
    assert len(table) == pytest.approx(8 * 1200, abs=3)
    whole = draw_requests(rates, seed=4)
    cut = draw_requests(rates, window_s=(600, 900), seed=4)
    inside = (whole.arrival_ns >= 600 * 10**9) & (whole.arrival_ns < 900 * 10**9)
    assert cut.arrival_ns == pytest.approx(whole.arrival_ns[inside] - 600 * 10**9, abs=1)
    assert cut.prompt_tokens.tolist() == whole.prompt_tokens[inside].tolist()
    first = draw_requests(rates, num_requests=10, seed=4)
    assert first.arrival_ns.tolist() == whole.arrival_ns[:10].tolist()
    assert draw_requests(rates, seed=5).arrival_ns.tolist() != whole.arrival_ns.tolist()


@pytest.mark.parametrize(
    ("shape", "weibull", "cv"),
    [
        (1.0, False, 1.0),
        (0.1, False, math.sqrt(10)),
        (25.0, False, 0.2),
        (0.5, True, math.sqrt(5)),
        (1.0, True, 1.0),
    ],
)
def test_gaps_have_the_clients_own_spread(shape: float, weibull: bool, cv: float) -> None:
    gaps_ns = np.diff(draw_requests(one_client(shape, weibull), seed=2).arrival_ns)
    assert len(gaps_ns) == 59_999
    assert gaps_ns.std() / gaps_ns.mean() == pytest.approx(cv, rel=0.05)


def test_extreme_shapes_are_no_trouble() -> None:
    for shape in (1e-6, 0.0067, 45_200.0):
        for weibull in (False, True):
            assert len(draw_requests(one_client(shape, weibull, 0.1))) == 60


def test_a_part_of_a_request_is_drawn_as_often() -> None:
    rates = one_client(1.0, False, 0.3 / 600)
    counts = [len(draw_requests(rates, seed=seed)) for seed in range(400)]
    assert set(counts) == {0, 1}
    assert np.mean(counts) == pytest.approx(0.3, abs=0.07)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window_s": (1200.0, 1300.0)}, "window from 1200 s; the recording of big is 1200 s long"),
        ({"requests_per_s": 1e6}, "choose a part with workload.window_s"),
    ],
)
def test_what_cannot_be_drawn(sample: Path, options: dict[str, float], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        draw_requests(read_client_rates(sample, "big"), **options)  # type: ignore[arg-type]
    nobody = replace(read_client_rates(sample, "big"), lengths={})
    with pytest.raises(ScenarioError, match="no client of big has lengths"):
        draw_requests(nobody)


BAD_FILES = {
    "no subset": ("rates.csv", "", "", None, "holds the clients of big, small; choose one by"),
    "other subset": ("rates.csv", "", "", "huge", "subset is 'huge'; it holds big, small"),
    "pattern": ("rates.csv", ",W,", ",P,", "big", "line 3: pat is 'P'; expected G or W"),
    "rate": (
        "rates.csv",
        "0.25,1.0",
        "fast,1.0",
        "big",
        "line 3: rate is 'fast'; expected a number",
    ),
    "edge": ("length_hist.csv", ",64,", ",65,", "big", "lo is 65; expected an edge"),
    "share": ("length_hist.csv", "0.75", "1.75", "big", "line 3: p is '1.75'; expected a number"),
}


@pytest.mark.parametrize(
    ("file", "old", "new", "subset", "message"), BAD_FILES.values(), ids=BAD_FILES
)
def test_bad_files(
    sample: Path, file: str, old: str, new: str, subset: str | None, message: str
) -> None:
    path = sample.with_name(file)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(TraceError, match=message):
        read_client_rates(sample, subset)


def test_lengths_must_stand_beside_the_rates(sample: Path) -> None:
    sample.with_name("length_hist.csv").unlink()
    with pytest.raises(TraceError, match=r"needs length_hist\.csv"):
        read_client_rates(sample, "big")
    renamed = sample.rename(sample.with_name("clients.csv"))
    sample.with_name("length_hist.csv").write_text(SERVEGEN_LENGTHS)
    with pytest.raises(TraceError, match="expected a name with 'rates' in it"):
        read_client_rates(renamed, "big")


@needs_rates
def test_a_day_of_deepseek_r1_has_the_published_statistics() -> None:
    """shared/data/traces/README: 16.0 requests/s; percentiles over its 73 clients' requests."""
    rates = read_client_rates(RATES, "deepseek-r1")
    table = draw_requests(rates, requests_per_s=4.0)  # the same mix, a quarter of the requests
    assert len(table) / 86_400 == pytest.approx(4.0, rel=0.002)
    published = {
        "prompt_tokens": (1268, 208, 2092, 23423),
        "output_tokens": (1527, 792, 3432, 12607),
    }
    for name, (mean, p50, p90, p99) in published.items():
        tokens = getattr(table, name)
        assert tokens.mean() == pytest.approx(mean, rel=0.02)
        assert np.percentile(tokens, (90, 99)) == pytest.approx((p90, p99), rel=0.03)
        assert np.percentile(tokens, 50) == pytest.approx(p50, rel=0.07)
    per_hour = np.bincount(table.arrival_ns // (3600 * 10**9), minlength=24) / (len(table) / 24)
    diurnal = "1.21 1.39 2.03 1.79 1.06 .91 .75 .58 .60 .66 .81 .83 .45 .55 .68 .70 .88 .55 .75 .59"
    expected = [float(x) for x in f"{diurnal} 1.24 1.62 2.19 1.18".split()]
    assert per_hour == pytest.approx(expected, rel=0.03)


@needs_rates
def test_two_weeks_of_m_large_have_the_published_rates() -> None:
    """shared/data/traces/README: 162 clients, 196 requests/s, peak over mean in 10 min 2.98."""
    rates = read_client_rates(RATES, "m-large")
    assert len(np.unique(rates.client)) == 162
    per_s = np.bincount(rates.bin, rates.rate_per_s)
    assert len(per_s) == 14 * 144
    assert per_s.mean() == pytest.approx(196, rel=0.005)
    assert per_s.max() / per_s.mean() == pytest.approx(2.98, rel=0.005)
    table = draw_requests(rates, window_s=(36_000, 37_200), requests_per_s=20.0)
    assert len(table) == pytest.approx(24_000, rel=0.005)
