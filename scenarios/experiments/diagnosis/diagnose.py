"""Replay measured requests on a server's scenario, and explain its bad windows."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from calibrate.results.run import MeasuredRun
from scenarios.build.workload.table import build_table
from scenarios.experiments.diagnosis.traffic import METRICS, Traffic, traffic_of
from scenarios.experiments.diagnosis.windows import (
    PARTLY,
    QUIET,
    TRAFFIC,
    bias_of,
    by_window,
    loads,
    statistic_for,
    usual,
    verdicts,
    window_of,
)
from scenarios.files.flags import ANY_WORKLOAD
from scenarios.files.load import apply_setting, validate
from scenarios.files.yaml_text import Places
from scenarios.run.result import RunResult
from scenarios.run.simulate import simulate
from scenarios.schema import Scenario
from sim import __version__
from sim.accounts import TIME_ACCOUNTS
from sim.arrays import Float64, Int64
from sim.errors import FleetcastError, ScenarioError

_GROUPS = {
    "queue": ("api_server", "admission_queue", "scheduling_wait"),
    "others' prefill": ("others_prefill",),
    "preemption": ("preemption_recompute", "preemption_swap"),
    "cache loads and transfers": ("cache_load", "kv_transfer"),
    "its own prefill": ("prefill_compute", "prefill_memory"),
    "decoding": ("decode_weight_reads", "decode_state_reads", "communication", "adapters"),
    "host": ("launch_and_host",),
    "other": ("speculation_draft", "speculation_waste", "failure_rework", "remainder"),
}
_MOST_REQUESTS = 10
_COUNTED = ("num_preemptions", "prefix_cache_queries", "prefix_cache_hits")
_NO_PREFIXES = (
    "the measurement does not say which prompts share prefixes: the replay has none, so cache "
    "misses are seen only as time that traffic does not explain"
)


def diagnose(
    values: Mapping[str, Any],
    places: Places,
    run: MeasuredRun,
    *,
    window: str | None = None,
    has_changes: bool = True,
) -> dict[str, Any]:
    """Return the diagnosis of a run on the server of a scenario's nested ``values``, as JSON.

    ``window`` is text such as ``5min`` (None: chosen). Without ``has_changes`` no change is
    simulated. A run without token counts, and without a workload in the scenario to take them from,
    is described and not replayed. One without times of requests, as a scrape of metrics, is
    compared as a whole with the scenario's workload. Raises `ScenarioError`.
    """
    has_workload = "workload" in values
    given = {"workload": dict(ANY_WORKLOAD), **values, "bands": False, "replications": 1}
    scenario = validate(given, places)
    if run.arrival_s is None:
        return _whole(scenario, run, has_workload=has_workload)
    traffic = traffic_of(run, build_table(scenario) if has_workload else None)
    if not traffic.latencies_s:
        raise ScenarioError(f"{run.name}: no latency of any request is known")
    window_s = window_of(window, float(traffic.arrival_s[-1]))
    index = (traffic.arrival_s // window_s).astype(np.int64)
    count = int(index[-1]) + 1
    replay = simulate(scenario, table=traffic.table()) if traffic.is_complete else None
    metric, statistic = _metric(traffic, index, count)
    measured = by_window(traffic.latencies_s[metric], index, count, statistic)
    replayed = np.full(count, np.nan)
    if replay is not None:
        replayed = by_window(_of(replay, metric), index, count, statistic)
    bias = bias_of(measured, replayed)
    found = verdicts(measured, replayed * bias)
    bad = [n for n, (word, _) in enumerate(found) if word != QUIET]
    unexplained = [n for n in bad if found[n][0] not in (TRAFFIC, PARTLY)]
    content: dict[str, Any] = {
        "kind": "diagnosis",
        "run": run.name,
        "tool": run.tool,
        "model": scenario.model,
        "gpu": scenario.hardware.gpu,
        "metric": metric,
        "statistic": statistic,
        "window_s": window_s,
        "num_requests": len(traffic.arrival_s),
        "failed": run.failed,
        "is_replayed": replay is not None,
        "bias": bias if replay is not None else None,
        "usual_s": float(np.nanmedian(measured)),
        "windows": [
            {
                "start_s": n * window_s,
                **load,
                "measured_s": _number(measured[n]),
                "replayed_s": _number(replayed[n]),
                "verdict": found[n][0] if replay is not None or found[n][0] == QUIET else "raised",
                "explained": found[n][1] if replay is not None else None,
            }
            for n, load in enumerate(loads(traffic, index, count, window_s))
        ],
        "others": _others(traffic, replay, (index, count, statistic), unexplained, metric),
        "accounts": [] if replay is None else _accounts(replay, metric, index, found, measured),
        "requests": _worst(traffic, replay, metric, index, bad),
        "changes": [],
        "notes": [*traffic.notes, *([_NO_PREFIXES] if replay is not None else [])],
        "fleetcast_version": __version__,
    }
    explained = [n for n in bad if found[n][0] in (TRAFFIC, PARTLY)]
    if replay is not None and has_changes and explained:
        frame = (metric, statistic, index, count, bias, explained)
        content["changes"] = _changes(given, places, traffic, replay, content["accounts"], frame)
    return content


def _whole(scenario: Scenario, run: MeasuredRun, *, has_workload: bool) -> dict[str, Any]:
    """Return what can be said without times: the measured latencies beside those of the scenario's
    workload, and what the server counted."""
    replay = simulate(scenario) if has_workload else None
    rows = []
    for metric in METRICS:
        for statistic, value in run.measured(metric).items():
            found = None if replay is None else replay.figure(metric, statistic)
            rows.append(
                {
                    "metric": metric,
                    "statistic": statistic,
                    "measured_s": value.value,
                    "replayed_s": found,
                }
            )
    if not rows:
        raise ScenarioError(f"{run.name}: no latency of any request is known")
    return {
        "kind": "diagnosis",
        "run": run.name,
        "tool": run.tool,
        "model": scenario.model,
        "gpu": scenario.hardware.gpu,
        "num_requests": run.completed,
        "failed": run.failed,
        "is_replayed": replay is not None,
        "whole": rows,
        "counted": {key: value for key, value in run.conditions.items() if key in _COUNTED},
        "notes": list(run.notes),
        "fleetcast_version": __version__,
    }


def _metric(traffic: Traffic, index: Int64, count: int) -> tuple[str, str]:
    """Return the metric whose worst window stands out most, and its statistic."""
    statistic = statistic_for(np.bincount(index, minlength=count))

    def worst(metric: str) -> float:
        found = by_window(traffic.latencies_s[metric], index, count, statistic)
        return float(np.nanmax(found) / max(np.nanmedian(found), 1e-9))

    return max((m for m in METRICS if m in traffic.latencies_s), key=worst), statistic


def _of(replay: RunResult, metric: str) -> Float64:
    values: Float64 = getattr(replay.metrics, f"{metric}_s")
    return values


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _others(
    traffic: Traffic,
    replay: RunResult | None,
    frame: tuple[Int64, int, str],
    unexplained: list[int],
    metric: str,
) -> dict[str, float]:
    """Return how many times what was to be expected each other metric is in windows that traffic
    does not explain: of its replay, or of its usual value without one."""
    found = {}
    for other, values in traffic.latencies_s.items():
        windows = by_window(values, *frame)
        expected = np.full(len(windows), np.nanmedian(windows))
        if replay is not None:
            replayed = by_window(_of(replay, other), *frame)
            expected = replayed * bias_of(windows, replayed)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = (windows / expected)[unexplained]
        if other != metric and np.isfinite(ratios).any():
            found[other] = float(np.nanmedian(ratios))
    return found


def _accounts(
    replay: RunResult,
    metric: str,
    index: Int64,
    found: list[tuple[str, float | None]],
    measured: Float64,
) -> list[dict[str, Any]]:
    """Return the mean time a request by group of accounts, in usual windows and in the ones that
    are not, largest rise first."""
    books = replay.books.ttft_ns if metric == "ttft" else replay.books.e2e_ns
    raised = np.array([word != QUIET for word, _ in found])[index] & replay.metrics.finished
    at_ease = usual(measured)[index] & replay.metrics.finished
    if not raised.any() or not at_ease.any():
        return []
    rows = []
    for name, accounts in _GROUPS.items():
        columns = [TIME_ACCOUNTS.index(account) for account in accounts]
        total_s = books[:, columns].sum(axis=1) / 1e9
        bad_s, usual_s = float(total_s[raised].mean()), float(total_s[at_ease].mean())
        rows.append(
            {"account": name, "usual_s": usual_s, "raised_s": bad_s, "rise_s": bad_s - usual_s}
        )
    return sorted(rows, key=lambda row: -row["rise_s"])


def _worst(
    traffic: Traffic, replay: RunResult | None, metric: str, index: Int64, bad: list[int]
) -> list[dict[str, Any]]:
    """Return the slowest requests of the bad windows."""
    values = np.where(np.isin(index, bad), traffic.latencies_s[metric], np.nan)
    order = np.argsort(np.where(np.isfinite(values), -values, np.inf), kind="stable")
    chosen = [n for n in order[:_MOST_REQUESTS] if np.isfinite(values[n])]
    replayed = None if replay is None else _of(replay, metric)
    return [
        {
            "place": int(traffic.place[n]),
            "arrival_s": float(traffic.arrival_s[n]),
            "prompt_tokens": _number(traffic.prompt_tokens[n]),
            "output_tokens": _number(traffic.output_tokens[n]),
            "measured_s": float(values[n]),
            "replayed_s": None if replayed is None else _number(replayed[n]),
        }
        for n in chosen
    ]


def _changes(
    values: Mapping[str, Any],
    places: Places,
    traffic: Traffic,
    replay: RunResult,
    accounts: list[dict[str, Any]],
    frame: tuple[str, str, Int64, int, float, list[int]],
) -> list[dict[str, Any]]:
    """Return what each change would have made of the worst window that traffic explains."""
    metric, statistic, index, count, bias, bad = frame
    before = by_window(_of(replay, metric), index, count, statistic)[bad] * bias
    rows = []
    for name, settings in _candidates(replay, accounts, metric).items():
        changed = copy.deepcopy(dict(values))
        where = dict(places)
        row: dict[str, Any] = {"name": name, "settings": settings, "after_s": None, "refused": None}
        try:
            for key, value in settings.items():
                apply_setting(changed, where, key, value, f"--set {key}={value}")
            after = simulate(validate(changed, where), table=traffic.table())
            windows = by_window(_of(after, metric), index, count, statistic)[bad] * bias
            row["after_s"] = _number(float(np.nanmax(windows)))
        except FleetcastError as error:
            row["refused"] = str(error)
        rows.append(row | {"before_s": float(np.nanmax(before))})
    return sorted(rows, key=lambda row: (row["after_s"] is None, row["after_s"] or 0.0))


def _candidates(
    replay: RunResult, accounts: list[dict[str, Any]], metric: str
) -> dict[str, dict[str, Any]]:
    """Return a few changes, by name, that act on the accounts that rose."""
    scenario: Scenario = replay.scenario
    replica = replay.build.replica
    found: dict[str, dict[str, Any]] = {
        "one replica more": {"pool.replicas": scenario.pool.replicas + 1}
    }
    rose = {row["account"] for row in accounts[:2] if row["rise_s"] > 0}
    tokens, seqs = replica.max_num_batched_tokens, replica.max_num_seqs
    if metric != "ttft" and "others' prefill" in rose:
        found["steps of a quarter of the tokens"] = {
            "engine.max_num_batched_tokens": max(256, seqs, tokens // 4)
        }
        found["prompts in parts of 512 tokens"] = {"engine.long_prefill_token_threshold": 512}
    if "queue" in rose or metric == "ttft":
        found["steps of twice the tokens"] = {"engine.max_num_batched_tokens": 2 * tokens}
        if "queue" in rose:
            found["twice as many sequences at once"] = {"engine.max_num_seqs": 2 * seqs}
    if scenario.kv.cache_dtype == "auto" and rose & {"preemption", "queue"}:
        found["an 8-bit KV cache"] = {"kv.cache_dtype": "fp8"}
    if scenario.engine.quantization is None and replica.model.precision.linear == "bfloat16":
        found["fp8 weights"] = {"engine.quantization": "fp8"}
    return found
