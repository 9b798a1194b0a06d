"""Fit a scenario's constants to what was observed of a server from outside, by simulating it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.servers.observe import Observed
from costmodels.engines.api_server import ApiServerCosts
from costmodels.engines.calibration import Calibration, load_api_server, save_calibration
from policies import ROUTERS, SCHEDULERS
from scenarios.build.engine import check_fit, engine_config
from scenarios.build.plugins import router_factory, scheduler_factory
from scenarios.build.replica import Replica
from scenarios.build.resolve import resolve
from scenarios.calibration.factors import FROM_OUTSIDE, fit_factors
from scenarios.schema import Scenario
from sim import __version__
from sim.arrays import Float64
from sim.books.metrics import Slo, request_metrics
from sim.errors import ScenarioError
from sim.fleet.cluster import run_cluster
from sim.fleet.config import PoolConfig
from sim.paths import file_sha256
from sim.request_table import UNLIMITED, request_table

_METRICS = ("ttft", "tpot")
_SURE = {"ttft": 0.06, "tpot": 0.03}
"""Relative error of a measured latency that leaves a constant where it is."""
_API_SPREAD, _API_FARTHEST = 0.8, 20.0
_API = ("API server, a request", "API server, a prompt token", "API server, a part")


def fit_observation(
    scenario: Scenario, found: Sequence[Observed], seen: Path, out: Path
) -> dict[str, Any]:
    """Fit to the phases that are not held out, and write the calibration to ``out``.

    Returns the facts of `reports.calibration.fitted`; before is the scenario as it is, with an API
    server only if it asks for one. Raises `ScenarioError` if the scenario is
    not one engine, or nothing was observed that constants could be fitted to.
    """
    known = _replica(scenario)
    fitted_to = [one for one in found if not one.phase.held_out]
    held_out = [one for one in found if one.phase.held_out]
    if not fitted_to or not held_out:
        raise ScenarioError(f"{seen}: too few phases to fit to some and judge by others")
    factors = _fit(known, fitted_to)
    changed = _changed(known, factors)
    assert changed.api_server is not None
    given = resolve(scenario)
    before, after = (_errors(replica, held_out) for replica in (given, changed))
    calibration = Calibration(
        profile=changed.profile,
        efficiency=changed.fitted,
        gpu=known.gpu.name,
        machine="observed over HTTP",
        date=datetime.now(UTC).date().isoformat(),
        inputs={seen.name: file_sha256(seen)},
        api_server=changed.api_server,
        errors={phase: error for (phase, metric), error in after.items() if metric == "ttft p50"},
    )
    digest = save_calibration(calibration, out)
    return {
        "fleetcast_version": __version__,
        "profile": known.profile.name,
        "gpu": known.gpu.name,
        "path": str(out),
        "api_server": True,
        "hash": digest,
        "fitted_to": f"{len(fitted_to)} of {len(found)} phases",
        "constants": _constants(factors, changed.api_server),
        "errors": _rows(before, after),
        "warnings": [],
    }


def _replica(scenario: Scenario) -> Replica:
    if scenario.pools or scenario.pool.replicas > 1:
        raise ScenarioError("a server is observed as one engine: give a scenario of one replica")
    known = resolve(scenario)
    check_fit(known)
    if known.api_server is None:
        engine = scenario.engine.model_copy(update={"api_server_count": 1})
        costs = load_api_server(engine.profile).scaled(engine.host_speed_factor)
        scenario = scenario.model_copy(update={"engine": engine})
        known = replace(known, scenario=scenario, api_server=costs)
    return known


def _fit(known: Replica, found: Sequence[Observed]) -> Float64:
    """Return the factors of the engine's constants, then those of the API server's."""
    measured = [_measured(one) for one in found]

    def errors(factors: Float64) -> Float64:
        replica = _changed(known, factors)
        parts = []
        for one, statistics in zip(found, measured, strict=True):
            predicted = _predicted(replica, one)
            for name in statistics:
                parts.append(np.log(predicted[name] / statistics[name]) / _SURE[name[:4]])
        return np.array(parts)

    return fit_factors(
        [*(factor.spread for factor in FROM_OUTSIDE), *[_API_SPREAD] * len(_API)],
        [*(factor.farthest for factor in FROM_OUTSIDE), *[_API_FARTHEST] * len(_API)],
        errors,
    )


def _changed(known: Replica, factors: Float64) -> Replica:
    """Return the replica with its constants multiplied."""
    *of_engine, request, prompt_token, part = factors.tolist()
    profile, efficiency = known.profile, known.fitted
    for factor, value in zip(FROM_OUTSIDE, of_engine, strict=True):
        profile, efficiency = factor.on(profile, efficiency, value)
    costs = known.api_server
    assert costs is not None
    return replace(
        known,
        profile=profile,
        fitted=efficiency,
        api_server=replace(
            costs,
            request_s=costs.request_s * request,
            prompt_token_s=costs.prompt_token_s * prompt_token,
            part_s=costs.part_s * part,
        ),
    )


def _measured(one: Observed) -> dict[str, float]:
    tpot_s = [np.nan if (tpot := answer.tpot_s) is None else tpot for answer in one.answers]
    return _statistics(np.array([answer.ttft_s for answer in one.answers]), np.array(tpot_s))


def _predicted(replica: Replica, one: Observed) -> dict[str, float]:
    """Simulate a phase: its clients, or its arrivals as they were sent."""
    phase = one.phase
    lengths = np.array(phase.lengths, np.int64)
    sent_s = np.array([answer.sent_s for answer in one.answers])
    order = np.argsort(sent_s) if phase.arrivals_s else np.arange(len(sent_s))
    table = request_table(
        sent_s[order] if phase.arrivals_s else np.zeros(len(sent_s)),
        lengths[order, 0],
        lengths[order, 1],
        max_concurrency=phase.concurrency or UNLIMITED,
        source=phase.name,
    )
    metrics = request_metrics(run_cluster(table, _pool(replica)), Slo())
    return _statistics(metrics.ttft_s, metrics.tpot_s)


def _pool(replica: Replica) -> PoolConfig:
    return PoolConfig(
        engine=engine_config(replica),
        cost=replica.cost,
        make_scheduler=scheduler_factory(replica.scenario.engine.scheduler, SCHEDULERS),
        make_router=router_factory("round_robin", ROUTERS),
    )


def _statistics(ttft_s: Float64, tpot_s: Float64) -> dict[str, float]:
    """Return medians and means by name. In a phase of few answers that come in waves, other
    percentiles jump from one wave to the next."""
    found = {}
    for metric, values in zip(_METRICS, (ttft_s, tpot_s), strict=True):
        kept = values[~np.isnan(values)]
        if kept.size:
            found[f"{metric} p50"] = float(np.median(kept))
            found[f"{metric} mean"] = float(kept.mean())
    return found


def _errors(replica: Replica, found: Sequence[Observed]) -> dict[tuple[str, str], float]:
    """Return the absolute relative error by phase and statistic."""
    errors = {}
    for one in found:
        predicted = _predicted(replica, one)
        for name, measured in _measured(one).items():
            errors[one.phase.name, name] = abs(predicted[name] / measured - 1)
    return errors


def _rows(
    before: dict[tuple[str, str], float], after: dict[tuple[str, str], float]
) -> list[dict[str, Any]]:
    """Return mean errors by kind of phase and statistic, then those of all phases."""
    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for place in before:
        phase, statistic = place
        groups.setdefault((f"{phase.partition('_')[0]} phases", statistic), []).append(place)
    for place in before:
        groups.setdefault(("all", place[1]), []).append(place)
    rows = []
    for (what, statistic), places in groups.items():
        metric, percentile = statistic.split()
        rows.append(
            {
                "what": what,
                "statistic": f"{metric.upper()} {percentile}",
                "count": len(places),
                "before": float(np.mean([before[place] for place in places])),
                "after": float(np.mean([after[place] for place in places])),
            }
        )
    return rows


def _constants(factors: Float64, costs: ApiServerCosts) -> list[dict[str, Any]]:
    """Return each factor, and what it makes of the API server's costs."""
    names = [*(factor.name for factor in FROM_OUTSIDE), *_API]
    values = (costs.request_s, costs.prompt_token_s, costs.part_s)
    shown = [""] * len(FROM_OUTSIDE) + [f"{1e6 * value:.3g} us" for value in values]
    return [
        {"what": name, "factor": factor, "value": value}
        for name, factor, value in zip(names, factors.tolist(), shown, strict=True)
    ]
