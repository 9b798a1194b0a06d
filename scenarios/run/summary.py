"""summary.json: the figures with their evidence, their conditions and their sources."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from costmodels.layouts.layout import Layout
from reports.schemas import RESULT
from scenarios.build import features
from scenarios.build.plugins import policy_label
from scenarios.build.policy_checks import name_and_options
from scenarios.build.pools import Build, PoolBuild, pool_scenarios
from scenarios.build.workload.table import describe_workload
from scenarios.run.class_facts import class_facts, slo_facts
from scenarios.run.engine_sections import (
    calibration_address,
    operator_facts,
    speculation_facts,
    tier_facts,
)
from scenarios.run.figures import run_figures
from scenarios.run.fleet_sections import fleet_facts, service_facts
from scenarios.run.warnings import warnings_for
from scenarios.schema import Scenario
from sim import __version__
from sim.accounts import API_SERVER, CACHE_LOAD, KV_TRANSFER, PREFILL_COMPUTE, TIME_ACCOUNTS
from sim.books.ledger import TimeBooks, waits_only
from sim.books.metrics import RequestMetrics
from sim.books.run_accounts import gpu_time_ns
from sim.books.saturation import saturation
from sim.books.window import Window, time_weighted
from sim.engine.config import EngineConfig
from sim.evidence import LABELS, Source, weakest, weakest_share
from sim.fleet.cluster import RunLog
from sim.request import Status

# A figure's label is the weakest one that carries at least this share of its time.
_LABEL_SHARE = 0.05


_OTHER_BATCHES = ("static", "orca", "sarathi")
"""Schedulers whose batches have bounds beyond the engine's, so the saturation estimate does not
apply."""


def summarize(
    scenario: Scenario,
    build: Build,
    log: RunLog,
    metrics: RequestMetrics,
    books: TimeBooks,
    wall_s: float,
) -> dict[str, Any]:
    """Return everything that a reader needs to judge a run, as plain JSON values."""
    shares = _evidence_shares(build, books, metrics, log)
    label = weakest_share(shares)
    figures = run_figures(log, metrics, build)
    for figure in figures:
        figure.setdefault("evidence", label)
    failures: list[str] = []
    summary: dict[str, Any] = {
        "schema": RESULT,
        "fleetcast_version": __version__,
        "conditions": _conditions(scenario, build, log, metrics.window),
        "figures": figures,
        "requests": _request_counts(log, metrics),
        "slo": slo_facts(metrics),
        "classes": class_facts(scenario, log, metrics),
        "evidence": shares,
        "sources": _sources(build),
        "e2e_accounts_s": _mean_accounts(books.e2e_ns, metrics),
        "ttft_accounts_s": _mean_accounts(books.ttft_ns, metrics),
        "step_accounts_s": dict(zip(TIME_ACCOUNTS, (gpu_time_ns(log) / 1e9).tolist(), strict=True)),
        "device_bytes": _device_bytes(build.parts[0], log, metrics.window),
        "saturation": _saturation(scenario, log, failures),
        "run": {
            "steps": sum(int(s.column("steps").sum()) for s in log.steps),
            "runs": sum(len(s) for s in log.steps),
            "plans": sum(s.plans for s in log.steps),
            "events": log.num_events,
            "simulated_s": log.end_ns / 1e9,
            "wall_s": wall_s,
        },
    }
    if failures:
        summary["failed_estimates"] = failures
    if log.tiers:
        summary["kv_tiers"] = tier_facts(log, metrics)
    speculation = speculation_facts(build, log, summary["step_accounts_s"])
    if speculation is not None:
        summary["speculation"] = speculation
    if log.fleet.service is not None:
        summary["service"] = service_facts(log, metrics)
    added = features.facts(log)
    if added:
        summary["features"] = added
    fleet = fleet_facts(log, metrics.window)
    if fleet:
        summary["fleet"] = fleet
    summary["warnings"] = warnings_for(scenario, log, metrics, summary)
    return summary


def _conditions(scenario: Scenario, build: Build, log: RunLog, window: Window) -> dict[str, Any]:
    skipped = log.table.skipped_rows
    notes = [*build.notes, *log.table.notes]
    if skipped:
        notes.append(f"{skipped:,} malformed trace rows were skipped")
    return {
        "model": build.replica.model.name,
        "gpu": build.replica.gpu.name,
        "gpus": sum(part.pool.replicas * part.replica.layout.gpus for part in build.parts),
        "replicas": len(log.steps),
        "tensor_parallel_size": build.replica.layout.tensor_parallel_size,
        **_parallel_conditions(build.replica.layout),
        "pools": _pools(build, log, window) if scenario.pools else None,
        "engine": build.replica.profile.name
        if scenario.engine.version is not None
        else scenario.engine.profile,
        "scheduler": policy_label(scenario.engine.scheduler),
        "router": policy_label(scenario.pool.router),
        **engine_conditions(log.pool.engine),
        "cost_model": _cost_model(scenario.engine.operators),
        "operators": operator_facts(build.replica),
        "calibration_sha256": calibration_address(build.replica),
        "workload": describe_workload(scenario, log.table),
        "seed": scenario.seed,
        "warmup_s": scenario.warmup_s or None,
        "horizon_s": scenario.horizon_s,
        "replications": scenario.replications if scenario.replications > 1 else None,
        "slo": scenario.slo.model_dump(),
        "notes": notes,
    }


def _parallel_conditions(layout: Layout) -> dict[str, Any]:
    """Return a replica's parallel sizes beside tensor parallelism; None for each that it does
    not use."""
    stages, ranks = layout.pipeline_parallel_size, layout.data_parallel_size
    prompts, decodes = layout.prefill_context_parallel_size, layout.decode_context_parallel_size
    return {
        "pipeline_parallel_size": stages if stages > 1 else None,
        "data_parallel_size": ranks if ranks > 1 else None,
        "prefill_context_parallel_size": prompts if prompts > 1 else None,
        "decode_context_parallel_size": decodes if decodes > 1 else None,
        "expert_parallel_size": layout.expert_ranks if layout.enable_expert_parallel else None,
    }


def _pools(build: Build, log: RunLog, window: Window) -> list[dict[str, Any]]:
    """Return the description of each pool: role, size, hardware, policies, engine options."""
    return [
        {
            "name": part.pool.name,
            "role": part.pool.role,
            "replicas": part.pool.replicas,
            "gpu": part.replica.gpu.name,
            "tensor_parallel_size": part.replica.layout.tensor_parallel_size,
            **_parallel_conditions(part.replica.layout),
            "scheduler": policy_label(part.replica.scenario.engine.scheduler),
            "router": policy_label(part.replica.scenario.pool.router),
            **engine_conditions(part.pool.engine),
            "device_bytes": _device_bytes(part, log, window),
        }
        for part in build.parts
    ]


def _sources(build: Build) -> list[Source]:
    """Return the sources of all pools' costs, each source once."""
    found = [source for part in build.parts for source in part.replica.cost.sources()]
    found += [source for part in build.parts for source in part.cache.sources]
    servers = (part.replica.api_server for part in build.parts)
    found += [source for costs in servers if costs is not None for source in costs.sources()]
    return list({tuple(source.items()): source for source in found}.values())


def engine_conditions(engine: EngineConfig) -> dict[str, Any]:
    """Return the engine options that a result was obtained with."""
    shared = engine.shared_prefix_attention
    return {
        "async_scheduling": engine.async_scheduling,
        **({} if engine.speculation is None else {"num_speculative_tokens": _drafts(engine)}),
        "max_num_batched_tokens": engine.step_token_limit,
        "max_num_seqs": engine.running_seq_limit,
        "max_model_len": engine.max_model_len,
        **({} if engine.api_server is None else {"api_server_count": engine.api_server.servers}),
        "block_size": engine.block_size,
        "num_gpu_blocks": engine.replica_blocks,
        "enable_prefix_caching": engine.enable_prefix_caching,
        **({"preemption_mode": "swap"} if engine.preemption_mode == "swap" else {}),
        "shared_prefix_attention": None if shared == "none" else shared,
    }


def _drafts(engine: EngineConfig) -> int | str:
    """Return the tokens drafted per sequence, as text if they depend on the number of sequences."""
    assert engine.speculation is not None
    table = engine.speculation.drafts_by_seqs
    if len(table) == 1:
        return table[0][1]
    return ", ".join(f"{drafts} from {least} sequences on" for least, drafts in table)


def _cost_model(operators: str | dict[str, str]) -> str:
    named = {
        "fitted": "roofline of each operator",
        "datasheet": "roofline of each operator, from the datasheet alone",
        "ours": "our own measured operators",
    }
    if isinstance(operators, dict):
        default = operators.get("default", "fitted")
        others = [f"{name}: {source}" for name, source in operators.items() if name != "default"]
        return ", ".join([*others, f"other operators: {default}"])
    if operators == "aic" or operators.startswith("aic:"):
        return f"AIConfigurator's measured operators ({operators}), roofline of the others"
    return named.get(operators, f"measured operators ({operators}), roofline of the others")


def _request_counts(log: RunLog, metrics: RequestMetrics) -> dict[str, Any]:
    counts: dict[str, Any] = {
        status.name.lower(): int(((metrics.status == status) & metrics.measured).sum())
        for status in (Status.FINISHED, Status.REJECTED, Status.FAILED, Status.UNFINISHED)
    }
    reasons: dict[str, int] = {}
    for index, reason in log.requests.reject_reasons.items():
        if metrics.measured[index]:
            reasons[reason] = reasons.get(reason, 0) + 1
    counts = {"arrived": sum(counts.values()), **counts, "reject_reasons": reasons}
    abandoned = int(((metrics.status == Status.ABANDONED) & metrics.measured).sum())
    if abandoned:
        counts["arrived"] += abandoned
        counts["abandoned"] = abandoned
    return counts


def _saturation(scenario: Scenario, log: RunLog, failures: list[str]) -> dict[str, Any] | None:
    schedulers = (of_pool.engine.scheduler for _, _, of_pool in pool_scenarios(scenario))
    if any(name_and_options(scheduler)[0] in _OTHER_BATCHES for scheduler in schedulers):
        return None  # the estimate is for the engine's own batches
    if any(pool.make_features for pool in log.fleet.pools):
        return None  # nor does it know what features add to a step, or keep from it
    try:
        limit = saturation(log)
    except (ArithmeticError, LookupError, ValueError) as error:
        # An estimate made after the run must not cost the run.
        failures.append(f"saturation ({type(error).__name__}: {error})")
        return None
    if limit is None or not 0 < limit.saturation_per_s < math.inf:
        return None  # no request was admitted, or its batches leave no room for an estimate
    return {
        "offered_per_s": limit.offered_per_s,
        "saturation_per_s": limit.saturation_per_s,
        "load": limit.load,
        **({"by_part_per_s": limit.by_part_per_s} if len(limit.by_part_per_s) > 1 else {}),
    }


def _evidence_shares(
    build: Build, books: TimeBooks, metrics: RequestMetrics, log: RunLog
) -> dict[str, float]:
    """Return the share of finished requests' served time by evidence label; waiting has no
    label."""
    by_pool = [part.replica.cost.evidence() for part in build.parts]
    accounts = {account for known in by_pool for account in known}
    labels = {
        account: weakest(known[account] for known in by_pool if account in known)
        for account in accounts
    }
    labels[KV_TRANSFER] = "datasheet"  # the network's bandwidth
    for part in build.parts:
        if part.replica.api_server is not None:
            labels[API_SERVER] = part.replica.api_server.evidence.label
    loads = [label for part in build.parts if (label := part.cache.load_label) is not None]
    if loads:
        labels[CACHE_LOAD] = weakest(loads)
    # other requests' prefill and recomputation count as prefill
    prefill_label = labels[PREFILL_COMPUTE]
    total_ns = books.e2e_ns[metrics.counted].sum(axis=0)
    shares: dict[str, float] = {}
    for account, ns in zip(TIME_ACCOUNTS, total_ns.tolist(), strict=True):
        if ns and not waits_only(account):
            label = labels.get(account, prefill_label)
            shares[label] = shares.get(label, 0.0) + ns
    beyond = shares.get("fitted", 0.0) * _share_beyond(log, build)
    if beyond:
        shares["fitted"] -= beyond
        shares["extrapolated"] = shares.get("extrapolated", 0.0) + beyond
    total = sum(shares.values())
    return {label: shares[label] / total for label in LABELS if label in shares}


def _share_beyond(log: RunLog, build: Build) -> float:
    """Return the share of GPU time in steps that are larger, or have longer contexts, than any
    fitted."""
    total_ns = beyond_ns = 0
    parts = (part for part in build.parts for _ in range(part.pool.replicas))
    for part, steps in zip(parts, log.steps, strict=True):
        fitted = part.replica.cost.kernels.efficiency.fitted_range
        if fitted is None:
            continue
        for c in steps.chunks():
            prefill_kv = c["prefill_context_tokens"] + c["prefill_tokens"]
            beyond = (
                (_tokens(c) > fitted.step_tokens)
                | (c["decode_context_tokens"] > fitted.context_tokens * c["decode_seqs"])
                | (prefill_kv > fitted.context_tokens * c["prefill_seqs"])
            )
            total_ns += int(c["gpu_ns"].sum())
            beyond_ns += int(c["gpu_ns"][beyond].sum())
    return beyond_ns / total_ns if total_ns else 0.0


def _tokens(columns: dict[str, Any]) -> Any:
    tokens = columns["decode_seqs"] + columns["prefill_tokens"]
    return tokens + columns.get("draft_tokens", 0)


def _mean_accounts(posted_ns: Any, metrics: RequestMetrics) -> dict[str, float]:
    finished = posted_ns[metrics.counted]
    if not len(finished):
        return {}
    means = (finished.mean(axis=0) / 1e9).tolist()
    return dict(zip(TIME_ACCOUNTS, means, strict=True))


def _device_bytes(part: PoolBuild, log: RunLog, window: Window) -> dict[str, int]:
    """Return the bytes of one device of a pool by use.

    Fragmentation is what the blocks of running sequences hold beyond their tokens.
    """
    replica, memory, blocks = part.replica, part.replica.memory, part.replica.memory.blocks
    of_pools = zip(log.steps, log.fleet.pool_of, strict=True)
    steps = [
        of_replica for of_replica, pool in of_pools if pool.name == part.pool.name and of_replica
    ]
    running = time_weighted(replace(log, steps=steps), "running", window)[0] if steps else 0.0
    wasted = 0
    # With a state at every block, the rest of a page holds a checkpoint, so it is not wasted.
    if running and replica.scenario.kv.mamba_cache_mode != "all" and len(log.table):
        prompt = max(1, round(float(log.table.prompt_tokens.mean())))
        a_sequence = blocks.fragmentation_bytes(memory.rank, prompt)
        wasted = round(running / replica.layout.data_parallel_size * a_sequence)
        wasted = min(wasted, blocks.num_bytes)
    between_ranks = memory.communication_bytes
    of_features = {one.name: sum(entry.num_bytes for entry in one.memory) for one in replica.added}
    return {
        "weights": memory.weight_bytes - memory.draft_weight_bytes,
        **({"draft_weights": memory.draft_weight_bytes} if memory.draft_weight_bytes else {}),
        "workspace": memory.workspace_bytes - between_ranks - sum(of_features.values()),
        **of_features,
        **({"communication_buffers": between_ranks} if between_ranks else {}),
        "kv_cache": blocks.num_bytes - wasted,
        "kv_cache_fragmentation": wasted,
        "free": blocks.free_bytes,
        "total": replica.gpu.hbm_bytes,
    }
