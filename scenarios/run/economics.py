"""Figures of money and energy, computed from a run and the prices in its scenario."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scenarios.schema.fleet import Prices
from sim.accounts import PREFILL_COMPUTE, PREFILL_MEMORY
from sim.books.metrics import RequestMetrics
from sim.books.run_accounts import COLUMN, gpu_time_ns
from sim.books.window import Window, busy_gpu_ns
from sim.fleet.cluster import RunLog

if TYPE_CHECKING:
    from scenarios.build.pools import Build

Figure = dict[str, Any]

_J_PER_KWH = 3.6e6


def gpu_seconds(log: RunLog, build: Build, window: Window) -> list[float]:
    """Return the GPU-seconds paid for within a window, by pool.

    Without scaling, all replicas are paid for all the time; with it, a replica is paid for from the
    moment it is requested until it has been drained, down or not.
    """
    replicas = len(log.steps)
    index, start, stop = np.array(log.service.lives, np.int64).reshape(-1, 3).T
    paid_ns = window.overlap_ns(start, np.where(stop < 0, log.end_ns, stop))
    by_replica = np.bincount(index, weights=paid_ns / 1e9, minlength=replicas)
    seconds, first = [], 0
    for part in build.parts:
        last = first + part.pool.replicas
        seconds.append(float(by_replica[first:last].sum()) * part.replica.layout.gpus)
        first = last
    return seconds


def economics_figures(
    log: RunLog, metrics: RequestMetrics, build: Build, prices: Prices
) -> list[Figure]:
    """Return GPU-hours, rent, $ per million tokens, $ per good request and energy.

    All are taken over the measured window.
    """
    window = metrics.window
    seconds = gpu_seconds(log, build, window)
    over = f"measured window of {window.length_s:.6g} s"
    label = "assumed" if prices.source is None else "reported"
    when = ", ".join(text for text in (prices.source, prices.date) if text)
    figures = [_figure("gpu_hours", sum(seconds) / 3600, "GPU-h", over, None)]
    joules, power = _energy(log, build, prices, window, seconds)
    if joules is not None:
        energy = _figure("energy", joules / _J_PER_KWH, "kWh", over, power)
        mean = _figure("mean_power_per_gpu", joules / max(sum(seconds), 1e-9), "W", over, power)
        figures += [energy, mean]
    rents = _rents(build, prices)
    if rents is None:
        return figures
    cost = sum(s / 3600 * usd for s, usd in zip(seconds, rents, strict=True))
    cost += (joules or 0.0) / _J_PER_KWH * prices.usd_per_kwh
    finished_ns = np.frombuffer(log.requests.finished_ns, np.int64)
    within = (finished_ns >= window.start_ns) & (finished_ns <= window.end_ns)
    served = metrics.finished & within
    good = int((metrics.good & metrics.measured).sum())
    inputs, outputs = (
        int(tokens[served].sum())
        for tokens in (log.table.prompt_tokens, log.table.all_output_tokens)
    )
    of_prompts = _prefill_share(log)
    priced = f"{over}, at prices {'assumed' if not when else 'of ' + when}"
    by_time = f"{priced}; prompts pay for the GPU time of prefill, answers for the rest"
    return [
        *figures,
        _figure("cost", cost, "USD", priced, label),
        _figure("usd_per_hour", _per(cost, window.length_s / 3600), "USD/h", priced, label),
        _figure(
            "usd_per_million_tokens", _per(cost, (inputs + outputs) / 1e6), "USD", priced, label
        ),
        _figure(
            "usd_per_million_input_tokens",
            _per(cost * of_prompts, inputs / 1e6),
            "USD",
            by_time,
            label,
        ),
        _figure(
            "usd_per_million_output_tokens",
            _per(cost * (1 - of_prompts), outputs / 1e6),
            "USD",
            by_time,
            label,
        ),
        _figure("usd_per_good_request", _per(cost, good), "USD", priced, label),
    ]


def _rents(build: Build, prices: Prices) -> list[float] | None:
    """Return USD per GPU-hour of each pool; None if one has no price."""
    names = [part.pool.name for part in build.parts]
    found = [prices.by_pool.get(name, prices.usd_per_gpu_h) for name in names]
    known = [usd for usd in found if usd is not None]
    return known if len(known) == len(found) else None


def _energy(
    log: RunLog, build: Build, prices: Prices, window: Window, seconds: list[float]
) -> tuple[float | None, str | None]:
    """Return the joules of all GPUs and their evidence label; None if the powers are not known."""
    if prices.idle_w is None:
        return None, None
    joules, first, label = 0.0, 0, "assumed"
    for part, paid_s in zip(build.parts, seconds, strict=True):
        busy_w = part.replica.gpu.tdp_w if prices.busy_w is None else prices.busy_w
        if busy_w is None:
            return None, None
        last = first + part.pool.replicas
        busy_s = busy_gpu_ns(log.steps[first:last], window) / 1e9 * part.replica.layout.gpus
        joules += prices.idle_w * paid_s + (busy_w - prices.idle_w) * min(busy_s, paid_s)
        first = last
    return joules, label


def _prefill_share(log: RunLog) -> float:
    """Return the share of busy GPU time that prefill adds to what decodes would take alone."""
    spent_ns = gpu_time_ns(log)
    total_ns = int(spent_ns.sum())
    prefill_ns = int(spent_ns[COLUMN[PREFILL_COMPUTE]] + spent_ns[COLUMN[PREFILL_MEMORY]])
    return prefill_ns / total_ns if total_ns else 0.0


def _per(value: float, amount: float) -> float | None:
    return value / amount if amount else None


def _figure(name: str, value: float | None, unit: str, over: str, label: str | None) -> Figure:
    figure: Figure = {
        "name": name,
        "statistic": "value",
        "value": value,
        "unit": unit,
        "population": over,
        "count": None,
    }
    if label is not None:
        figure["evidence"] = label
    return figure
