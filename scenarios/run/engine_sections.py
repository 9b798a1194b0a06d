"""Sections of summary.json about engines: cache tiers, speculation, sources of kernel times."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from costmodels.models.drafters import method_facts
from costmodels.steps.evidence import constants_label, family_labels
from scenarios.build.pools import Build
from scenarios.build.replica import Replica
from sim.accounts import SPECULATION_DRAFT, SPECULATION_WASTE
from sim.books.metrics import RequestMetrics
from sim.fleet.cluster import RunLog


def tier_facts(log: RunLog, metrics: RequestMetrics) -> list[dict[str, Any]]:
    """Return one entry per pool and tier, device memory first; empty if no engine has lower tiers.

    Hits count the prompts of finished measured requests; bytes are those of the whole run, summed
    over the pool's engines. What was added to a tier is held, evicted or lost.
    """
    facts: list[dict[str, Any]] = []
    cached = np.frombuffer(log.requests.cached_tokens, np.int64)
    replica = np.frombuffer(log.requests.replica, np.int32)
    first = 0
    for pool in log.fleet.pools:
        engines = range(first, first + pool.replicas)
        first = engines.stop
        if pool.cache.tiers is None:
            continue
        counted = metrics.counted & (replica >= engines.start) & (replica < engines.stop)
        prompts = int(log.table.prompt_tokens[counted].sum())
        hits = [int(cached[counted].sum())] + [0] * len(pool.cache.tiers.tiers)
        for request, by_tier in log.requests.tier_tokens.items():
            if counted[request]:
                for tier, tokens in by_tier.items():
                    hits[tier] += tokens if tier else 0
        hits[0] -= sum(hits[1:])
        facts.append({"pool": pool.name, "tier": "device", **_hit_facts(hits[0], prompts)})
        for tier, of_tier in enumerate(hits[1:]):
            ways = [log.tiers[engine].ways[tier] for engine in engines]
            size = ways[0].config.block_bytes
            stores = list({id(way.store): way.store for way in ways}.values())
            busy_ns = max(p.busy_ns for way in ways for p in (way.to_device, way.from_device))
            capacity = ways[0].config.capacity_blocks
            facts.append(
                {
                    "pool": pool.name,
                    "tier": ways[0].config.name,
                    **_hit_facts(of_tier, prompts),
                    "capacity_bytes": None if capacity is None else capacity * size * len(stores),
                    "peak_bytes": size * sum(store.most_held for store in stores),
                    "added_bytes": size * sum(store.added for store in stores),
                    "held_bytes": size * sum(store.held for store in stores),
                    "evicted_bytes": size * sum(store.evicted for store in stores),
                    "lost_bytes": size * sum(store.lost for store in stores),
                    "loads": sum(way.counts.loads for way in ways),
                    "loaded_bytes": size * sum(way.counts.loaded for way in ways),
                    "written_bytes": size * sum(way.counts.written for way in ways),
                    "link_busy": busy_ns / max(log.end_ns, 1),
                }
            )
    return facts


def _hit_facts(tokens: int, prompt_tokens: int) -> dict[str, Any]:
    share = tokens / prompt_tokens if prompt_tokens else None
    return {"hit_tokens": tokens, "hit_fraction": share}


class _Counts(NamedTuple):
    rounds: int
    """Decode steps, counted once for each sequence in them."""
    drafted: int
    accepted: int


def speculation_figures(log: RunLog, build: Build) -> list[dict[str, Any]]:
    """Return the mean tokens per decode step and sequence, and the share of drafts accepted."""
    parts = [part for part in build.parts if part.replica.speculation is not None]
    counts = _counts(log)
    if not parts or not counts.rounds:
        return []
    speculation = parts[0].replica.speculation
    label = speculation.acceptance.label if speculation else None

    def figure(name: str, value: float | None, unit: str, over: str, count: int) -> dict[str, Any]:
        return {
            "name": name,
            "statistic": "value",
            "value": value,
            "unit": unit,
            "population": over,
            "count": count,
            "evidence": label,
        }

    rounds, drafted, accepted = counts
    rate = accepted / drafted if drafted else None
    return [
        figure(
            "accepted_length",
            (rounds + accepted) / rounds,
            "tokens",
            "decode steps of sequences, the target's own token included",
            rounds,
        ),
        figure("acceptance_rate", rate, "fraction", "drafted tokens", drafted),
    ]


def speculation_facts(
    build: Build, log: RunLog, step_accounts_s: dict[str, float]
) -> dict[str, Any] | None:
    """Return the method, what it keeps of the target's distribution, and its share of GPU time."""
    speculating = next((s for p in build.parts if (s := p.replica.speculation) is not None), None)
    if speculating is None:
        return None
    facts = method_facts(speculating.drafter.method)
    busy_s = sum(step_accounts_s.values())
    draft_s, waste_s = step_accounts_s[SPECULATION_DRAFT], step_accounts_s[SPECULATION_WASTE]
    rounds, drafted, accepted = _counts(log)
    return {
        "method": speculating.drafter.method,
        "title": facts.title,
        "drafts_by_seqs": dict(speculating.speculation.drafts_by_seqs),
        "tree_nodes": len(speculating.drafter.tree) if speculating.drafter.tree else None,
        "acceptance": {
            "label": speculating.acceptance.label,
            "source": speculating.acceptance.source,
        },
        "keeps_target_distribution": {
            "value": facts.keeps_target,
            "label": "reported",
            "source": facts.keeps_source,
        },
        "decode_steps": rounds,
        "drafted_tokens": drafted,
        "accepted_tokens": accepted,
        "draft_share": draft_s / busy_s if busy_s else None,
        "waste_share": waste_s / busy_s if busy_s else None,
        "ledger": {
            "use": (draft_s + waste_s) / busy_s if busy_s else None,
            "budget": None,
            "unit": "share of GPU time",
        },
    }


def _counts(log: RunLog) -> _Counts:
    rounds = drafted = accepted = 0
    for steps in log.steps:
        if not steps.speculates:
            continue
        for columns in steps.chunks():
            rounds += int((columns["steps"] * columns["decode_seqs"]).sum())
            drafted += int((columns["steps"] * columns["draft_tokens"]).sum())
            accepted += int(columns["accepted_tokens"].sum())
    return _Counts(rounds, drafted, accepted)


def operator_facts(replica: Replica) -> list[dict[str, Any]]:
    """Return the source, evidence label and tables of each operator family, and why not another."""
    kernels = replica.cost.kernels
    labels = family_labels(kernels)
    return [
        {**one.facts(), "label": labels.get(one.family) or constants_label(kernels, one.family)}
        for one in replica.kernels.operators.families
    ]


def calibration_address(replica: Replica) -> str:
    """Return the SHA-256 of every number that prices a step: tables, constants, device, host
    terms."""
    operators = replica.kernels.operators
    content = {
        "operators": operators.address,
        "efficiency": asdict(operators.efficiency),
        "constants": {name: asdict(one) for name, one in operators.constants.items()},
        "gpu": asdict(replica.gpu),
        "profile": asdict(replica.profile),
    }
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
