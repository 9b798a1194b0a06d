"""summary.json: figures with unit, population and evidence, and what they rest on."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np

from costmodels.evidence import LABELS
from scenarios.build import Build
from scenarios.schema import Scenario
from scenarios.warnings import warnings_for
from scenarios.workload import describe_workload
from sim.accounts import TIME_ACCOUNTS
from sim.cluster import RunLog
from sim.ledger import TimeBooks, waits_only
from sim.metrics import (
    STATISTICS,
    RequestMetrics,
    Slo,
    gpu_busy,
    itl_statistics,
    statistics,
    time_weighted,
    window_s,
)
from sim.request import Status
from sim.saturation import saturation

SCHEMA = "fleetcast.result/1"
_LATENCIES = ("ttft", "tpot", "e2e", "queue")
# A figure's label is the weakest that carries at least this share of its time.
_LABEL_SHARE = 0.05


def summarise(
    scenario: Scenario,
    build: Build,
    log: RunLog,
    metrics: RequestMetrics,
    books: TimeBooks,
    slo: Slo,
    wall_s: float,
) -> dict[str, Any]:
    """Everything a reader needs to judge a run, as plain JSON values."""
    shares = _evidence_shares(build, books, metrics)
    label = next((name for name in reversed(LABELS) if shares.get(name, 0) >= _LABEL_SHARE), None)
    figures = _latency_figures(log, metrics) + _rate_figures(log, metrics, build)
    for figure in figures:
        figure["evidence"] = label
    limit = saturation(log)
    summary: dict[str, Any] = {
        "schema": SCHEMA,
        "fleetcast_version": version("fleetcast"),
        "conditions": _conditions(scenario, build, log, slo),
        "figures": figures,
        "requests": _request_counts(log, metrics),
        "slo": _slo(log, metrics, slo),
        "evidence": shares,
        "sources": build.cost.sources(),
        "e2e_accounts_s": _mean_accounts(books.e2e_ns, metrics),
        "ttft_accounts_s": _mean_accounts(books.ttft_ns, metrics),
        "device_bytes": _device_bytes(build),
        "saturation": None
        if limit is None
        else {
            "offered_per_s": limit.offered_per_s,
            "saturation_per_s": limit.saturation_per_s,
            "load": limit.load,
        },
        "run": {
            "steps": sum(int(s.column("steps").sum()) for s in log.steps),
            "runs": sum(len(s) for s in log.steps),
            "plans": sum(s.plans for s in log.steps),
            "events": log.num_events,
            "simulated_s": log.end_ns / 1e9,
            "wall_s": wall_s,
        },
    }
    summary["warnings"] = warnings_for(log, metrics, summary)
    return summary


def _latency_figures(log: RunLog, metrics: RequestMetrics) -> list[dict[str, Any]]:
    figures = []
    for name in _LATENCIES:
        values = np.where(metrics.finished, getattr(metrics, f"{name}_s"), np.nan)
        count = int((~np.isnan(values)).sum())
        figures += _figures(name, statistics(values), "s", "finished requests", count)
    itl, gaps = itl_statistics(log)
    return figures + _figures("itl", itl, "s", "gaps between tokens of finished requests", gaps)


def _rate_figures(log: RunLog, metrics: RequestMetrics, build: Build) -> list[dict[str, Any]]:
    window, finished = window_s(log), metrics.finished
    table, requests = log.table, log.requests
    gpus = log.pool.replicas * build.cost.shard.tensor_parallel_size
    outputs, prompts = (int(c[finished].sum()) for c in (table.output_tokens, table.prompt_tokens))
    cached = int(np.frombuffer(requests.cached_tokens, np.int64)[finished].sum())
    arrived = int((~np.isnan(metrics.arrival_s)).sum())

    def rate(amount: float) -> float | None:
        return amount / window if window else None

    over = f"measured window of {window:.6g} s"
    single: list[tuple[str, float | None, str, str]] = [
        ("request_throughput", rate(int(finished.sum())), "requests/s", over),
        ("input_throughput", rate(prompts), "tokens/s", over),
        ("output_throughput", rate(outputs), "tokens/s", over),
        ("total_throughput_per_gpu", rate((prompts + outputs) / gpus), "tokens/s", over),
        ("goodput", rate(int(metrics.good.sum())), "requests/s", over),
        ("attainment", _share(metrics.good.sum(), arrived), "fraction", "arrived requests"),
        ("availability", _share(finished.sum(), arrived), "fraction", "arrived requests"),
        ("gpu_busy", gpu_busy(log), "fraction", f"{over}, mean over replicas"),
        ("cache_hit_tokens", cached, "tokens", "prompts of finished requests"),
        ("cache_hit_fraction", _share(cached, prompts), "fraction", "prompts of finished requests"),
        ("preemptions", int(sum(requests.preemptions)), "count", "all requests"),
    ]
    figures = [
        _figure(name, "value", value, unit, population, count=arrived)
        for name, value, unit, population in single
    ]
    usable = log.pool.engine.num_gpu_blocks - 1
    free_mean, _ = time_weighted(log, "free_blocks")
    free_least = min((int(s.column("free_blocks").min()) for s in log.steps if len(s)), default=0)
    states = {name: time_weighted(log, name) for name in ("running", "waiting")}
    over = "time an engine had work, per replica"
    for name, (mean, highest) in states.items():
        figures.append(_figure(name, "mean", mean, "requests", over, count=arrived))
        figures.append(_figure(name, "max", highest, "requests", over, count=arrived))
    if any(len(s) for s in log.steps):
        occupancy = ((1 - free_mean / usable, "mean"), (1 - free_least / usable, "max"))
        for value, statistic in occupancy:
            figures.append(
                _figure("kv_occupancy", statistic, value, "fraction", over, count=arrived)
            )
    return figures


def _figures(
    name: str, values: dict[str, float | None], unit: str, population: str, count: int
) -> list[dict[str, Any]]:
    return [_figure(name, s, values[s], unit, population, count=count) for s in STATISTICS]


def _figure(
    name: str, statistic: str, value: float | None, unit: str, population: str, *, count: int
) -> dict[str, Any]:
    return {
        "name": name,
        "statistic": statistic,
        "value": value,
        "unit": unit,
        "population": population,
        "count": count,
    }


def _conditions(scenario: Scenario, build: Build, log: RunLog, slo: Slo) -> dict[str, Any]:
    engine = log.pool.engine
    ranks = scenario.engine.tensor_parallel_size
    skipped = log.table.skipped_rows
    notes = [*build.notes, *log.table.notes]
    if skipped:
        notes.append(f"{skipped:,} malformed trace rows were skipped")
    return {
        "model": build.model.name,
        "gpu": build.gpu.name,
        "gpus": scenario.pool.replicas * ranks,
        "replicas": scenario.pool.replicas,
        "tensor_parallel_size": ranks,
        "engine": scenario.engine.profile,
        "scheduler": scenario.engine.scheduler,
        "router": scenario.pool.router,
        "async_scheduling": engine.async_scheduling,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "max_num_seqs": engine.max_num_seqs,
        "max_model_len": engine.max_model_len,
        "block_size": engine.block_size,
        "num_gpu_blocks": engine.num_gpu_blocks,
        "enable_prefix_caching": engine.enable_prefix_caching,
        "cost_model": "roofline of each operator",
        "workload": describe_workload(scenario, log.table),
        "seed": scenario.seed,
        "slo": {"ttft_s": slo.ttft_s, "tpot_s": slo.tpot_s, "e2e_s": slo.e2e_s},
        "notes": notes,
    }


def _request_counts(log: RunLog, metrics: RequestMetrics) -> dict[str, Any]:
    counts = {
        status.name.lower(): int((metrics.status == status).sum())
        for status in (Status.FINISHED, Status.REJECTED, Status.FAILED, Status.UNFINISHED)
    }
    # A horizon may come before a request is sent: it has not arrived, and is not counted.
    never_sent = int(np.isnan(metrics.arrival_s).sum())
    counts["unfinished"] -= never_sent
    reasons: dict[str, int] = {}
    for reason in log.requests.reject_reasons.values():
        reasons[reason] = reasons.get(reason, 0) + 1
    return {"arrived": sum(counts.values()), **counts, "reject_reasons": reasons}


def _slo(log: RunLog, metrics: RequestMetrics, slo: Slo) -> dict[str, Any]:
    arrived = int((~np.isnan(metrics.arrival_s)).sum())
    window = window_s(log)
    return {
        "attainment": _share(metrics.good.sum(), arrived),
        "goodput_per_s": int(metrics.good.sum()) / window if window else None,
        "by_target": {
            name: _share(metrics.meets(name, target).sum(), arrived)
            for name, target in slo.targets.items()
        },
    }


def _evidence_shares(build: Build, books: TimeBooks, metrics: RequestMetrics) -> dict[str, float]:
    """Share of finished requests' served time by evidence label; waiting has none of its own."""
    labels = build.cost.evidence()
    fallback = labels["launch_and_host"]
    total_ns = books.e2e_ns[metrics.finished].sum(axis=0)
    shares: dict[str, float] = {}
    for account, ns in zip(TIME_ACCOUNTS, total_ns.tolist(), strict=True):
        if ns and not waits_only(account):
            label = labels.get(account, labels.get("prefill_compute", fallback))
            shares[label] = shares.get(label, 0.0) + ns
    total = sum(shares.values())
    return {label: shares[label] / total for label in LABELS if label in shares}


def _mean_accounts(posted_ns: Any, metrics: RequestMetrics) -> dict[str, float]:
    finished = posted_ns[metrics.finished]
    if not len(finished):
        return {}
    means = (finished.mean(axis=0) / 1e9).tolist()
    return dict(zip(TIME_ACCOUNTS, means, strict=True))


def _device_bytes(build: Build) -> dict[str, int]:
    memory = build.memory
    return {
        "weights": memory.weight_bytes,
        "workspace": memory.workspace_bytes,
        "kv_cache": memory.kv_cache_bytes,
        "free": memory.free_bytes,
        "total": memory.device_bytes,
    }


def _share(part: Any, whole: int) -> float | None:
    return float(part) / whole if whole else None
