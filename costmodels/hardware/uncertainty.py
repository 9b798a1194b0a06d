"""How far off a prediction may be: relative standard deviations of its inputs, by evidence."""

from __future__ import annotations

from costmodels.datafile import read_data

NORMAL_90 = 1.645
"""Half-width of a 90% band in standard deviations, for a normal error."""
_OF_THE_MIDDLE = ("mean", "p50", "value")


def step_time_error(label: str) -> float:
    """Of a run's GPU times, whose weakest evidence has this label."""
    return float(read_data("hardware/uncertainty.yaml")["step_time"][label])


def host_time_error(label: str) -> float:
    """Of a run's host times."""
    return float(read_data("hardware/uncertainty.yaml")["host_time"][label])


def repeat_error(metric: str, statistic: str) -> float:
    """Between runs of the real engine with the same arrivals; of E2E for metrics not repeated."""
    repeats = read_data("hardware/uncertainty.yaml")["repeat"]
    if metric.endswith(("throughput", "_per_gpu", "goodput", "attainment", "availability")):
        metric = "request_throughput"
    row = repeats.get(metric, repeats["e2e"])
    return float(row["p50" if statistic in _OF_THE_MIDDLE else "tail"])
