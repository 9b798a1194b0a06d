"""Uncertainty of a prediction: relative standard deviations of its inputs, by evidence label."""

from __future__ import annotations

from costmodels.datafile import read_data

NORMAL_90 = 1.645
"""Half-width of a 90% band in standard deviations, for a normal error."""
_OF_THE_MIDDLE = ("mean", "p50", "value")


def step_time_error(label: str) -> float:
    """Return the error of a run's GPU times, whose weakest evidence has this label."""
    return float(read_data("hardware/uncertainty.yaml")["step_time"][label])


def host_time_error(label: str) -> float:
    """Return the error of a run's host times, whose weakest evidence has this label."""
    return float(read_data("hardware/uncertainty.yaml")["host_time"][label])


def repeat_error(metric: str, statistic: str) -> float:
    """Return the spread between runs of the real engine with equal arrivals; metrics never
    repeated use E2E's."""
    repeats = read_data("hardware/uncertainty.yaml")["repeat"]
    if metric.endswith(("throughput", "_per_gpu", "goodput", "attainment", "availability")):
        metric = "request_throughput"
    row = repeats.get(metric, repeats["e2e"])
    return float(row["p50" if statistic in _OF_THE_MIDDLE else "tail"])
