"""Formatting of numbers, and the sentence that answers a run."""

from typing import Any

import pytest

from reports.document import cell
from reports.facts import warning_texts, weakest_evidence
from reports.numbers import (
    MISSING,
    byte_size,
    count_of,
    duration,
    named_quantity,
    number,
    percent,
    significant,
    target,
)
from reports.run.answer import requests_sentence, verdict
from reports.run.tables import gauge_tables, latency_table
from tests.reports.sample import sample_requests, sample_summary


def summary(**changes: Any) -> dict[str, Any]:
    return sample_summary(sample_requests(100, 1, 0, 0)) | changes


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (9.996, "10.0"),
        (0.0123, "0.0123"),
        (8.5, "8.50"),
        (213.4, "213"),
        (1234.5, "1,234"),
    ],
)
def test_three_significant_digits(value: float, text: str) -> None:
    assert significant(value) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0, "0%"), (1, "100%"), (0.0004, "<0.1%"), (0.99999, "99.99%"), (0.9704, "97.0%")],
)
def test_only_all_is_all(fraction: float, text: str) -> None:
    assert percent(fraction) == text


def test_units() -> None:
    assert duration(0.2134) == "213 ms"
    assert duration(3.414) == "3.41 s"
    assert duration(2e-5) == "20.0 µs"
    assert duration(None) == duration(float("nan")) == MISSING
    assert target(0.05) == "50 ms"
    assert byte_size(16060522496) == "14.96 GiB"
    assert number(0.734, "fraction") == "73.4%"
    assert number(None, "s") == MISSING
    assert count_of(1, "finished requests") == "1 finished request"


def test_a_row_is_written_in_one_unit() -> None:
    rows = {cell(row[0]).text: row for row in latency_table(summary()).rows}
    assert rows["TTFT"][-3:-1] == ("ms", "100 finished requests")
    assert rows["E2E"][-3] == "s"


def test_the_weakest_label_counts() -> None:
    figures = [{"evidence": "fitted"}, {"evidence": "assumed"}, {"evidence": "measured"}, {}]
    assert weakest_evidence(figures) == "assumed"


def test_unknown_figures_are_shown() -> None:
    figures = [
        {"name": "power", "statistic": "mean", "value": 512.0, "unit": "W"},
        {"name": "kv_transfer", "statistic": "p99", "value": 0.01, "unit": "s"},
    ]
    odd = summary(figures=figures)
    _, others = gauge_tables(odd)
    assert [(row[0], cell(row[1]).text, row[3]) for row in others.rows] == [
        ("power, mean", "512", "W")
    ]
    assert [cell(row[0]).text for row in latency_table(odd).rows] == ["kv transfer"]


def test_the_answer_says_attainment_goodput_and_distance() -> None:
    answer = verdict(summary(slo={"attainment": 0.97, "goodput_per_s": 5.3}))
    assert answer.sentence == (
        "97.0% of requests meet the SLO (TTFT ≤ 250 ms, TPOT ≤ 16 ms); "
        "goodput is 5.30 requests/s; the load is 23% of saturation (24.1 requests/s)."
    )
    assert answer.tone == ""


@pytest.mark.parametrize(
    ("attainment", "wanted", "start", "tone"),
    [
        (1.0, None, "Every request meets", "good"),
        (0.0, None, "No request meets", "bad"),
        (0.97, 0.95, "SLO met: 97.0% of requests meet", "good"),
        (0.90, 0.95, "SLO missed: 90.0% of requests meet", "bad"),
        (None, None, "The share of requests that meet the SLO (TTFT ≤", ""),
    ],
)
def test_met_or_missed(
    attainment: float | None, wanted: float | None, start: str, tone: str
) -> None:
    given = summary(slo={"attainment": attainment})
    given["conditions"]["slo"]["attainment"] = wanted
    answer = verdict(given)
    assert answer.sentence.startswith(start)
    assert answer.tone == tone


def test_overload_is_said() -> None:
    answer = verdict(summary(saturation={"saturation_per_s": 10, "load": 1.24}))
    assert "1.24 times saturation (10.0 requests/s), so queues grow" in answer.sentence
    assert answer.tone == "bad"


def test_a_growing_queue_is_bad_whatever_the_load() -> None:
    warnings = [{"code": "unstable", "text": "the queue grows"}]
    assert verdict(summary(warnings=warnings)).tone == "bad"


@pytest.mark.parametrize(
    ("finished", "ttft_met", "start"),
    [
        (70, 0.69, "Most that are not good never finished: 30.0% of requests."),
        (70, 0.30, "TTFT is the tighter target, met by 30.0%."),
        (100, 0.95, "TTFT is the tighter target, met by 95.0%."),
        (None, 0.95, "TTFT is the tighter target, met by 95.0%."),
    ],
)
def test_the_reason_tells_lost_requests_from_slow_ones(
    finished: int | None, ttft_met: float, start: str
) -> None:
    by_target = {"ttft": ttft_met, "tpot": max(ttft_met, 0.695)}
    given = summary(requests={"arrived": 100, "finished": finished}, slo={"by_target": by_target})
    assert verdict(given).reason.startswith(start)


def test_without_an_slo() -> None:
    given = summary()
    given["conditions"]["slo"] = None
    assert verdict(given).sentence.startswith("No SLO is set: ")


def test_what_became_of_requests() -> None:
    assert requests_sentence(summary()) == "100 requests arrived and finished."
    counts = {"arrived": 10, "finished": 6, "rejected": 3, "failed": 0, "unfinished": 1}
    reasons = {"too long": 2, "queue full": 1}
    assert requests_sentence(summary(requests=counts | {"reject_reasons": reasons})) == (
        "10 requests arrived: 6 finished, 3 rejected (2 too long, 1 queue full) and 1 unfinished."
    )


def test_a_span_of_time_is_not_counted_in_requests() -> None:
    assert count_of(7, "measured window of 60 s") == "measured window of 60 s"


def test_warnings_are_sentences() -> None:
    warnings = [{"code": "x", "text": "the queue grows"}, {"code": "y"}, None]
    assert warning_texts(summary(warnings=warnings)) == ["The queue grows.", "Y."]
    grave = [{"code": "unstable", "text": "grows"}, {"code": "few_samples", "text": "few"}]
    assert warning_texts(summary(warnings=grave), grave=True) == ["Grows."]
    assert warning_texts(summary(warnings=grave), grave=False) == ["Few."]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("H200 bf16_flop_per_s", 989e12, "989 TFLOP/s"),
        ("H200 hbm_bytes_per_s", 4.8e12, "4.8 TB/s"),
        ("H200 hbm_bytes", 150109880320, "139.80 GiB"),
        ("gemm_fixed_s", 2.9e-6, "2.90 µs"),
        ("gemm_compute", 0.788, "0.788"),
        ("HBM bandwidth", "4800 GB/s", "4800 GB/s"),
        ("nothing", None, ""),
    ],
)
def test_a_name_that_ends_in_a_unit(name: str, value: object, text: str) -> None:
    assert named_quantity(name, value) == text
