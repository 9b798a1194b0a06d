"""Sentences that answer a run: whether the SLO is met, how near saturation is, what happened to
requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from reports.document import Tone
from reports.facts import (
    Summary,
    account_rows,
    entries,
    evidence_shares,
    section,
    value_of,
)
from reports.numbers import (
    LATENCY_LABELS,
    duration,
    humanised,
    is_number,
    listed,
    percent,
    significant,
    target,
    target_label,
    whole_percent,
)


def has_class_targets(summary: Summary) -> bool:
    """Return whether any class has a target, its own or the scenario's."""
    return any(facts.get("targets") for facts in entries(summary, "classes"))


class Verdict(NamedTuple):
    """The answer: one sentence, the reason behind it, and the tone to show it in."""

    sentence: str
    reason: str
    tone: Tone


def verdict(summary: Summary) -> Verdict:
    """Give attainment, goodput and distance to saturation in one sentence.

    A summary states which share of requests met the SLO, but not which share is enough, unless
    ``conditions.slo.attainment`` says so. Only then does the answer say met or missed.
    """
    attainment = section(summary, "slo").get("attainment")
    arrived = section(summary, "requests").get("arrived")
    load = section(summary, "saturation").get("load")
    wanted = section(summary, "conditions", "slo").get("attainment")
    targets = slo_targets(summary)

    of_classes = has_class_targets(summary)
    itl_of = section(summary, "conditions", "slo").get("itl_of")
    slo = "the SLO of their class" if of_classes else f"the SLO ({_targets_text(targets, itl_of)})"

    tone: Tone = ""
    if arrived == 0:
        return Verdict("No request arrived, so there is nothing to answer.", "", tone)
    if not targets and not of_classes:
        head = _without_slo(summary)
    elif not is_number(attainment):
        head = f"The share of requests that meet {slo} is not known"
    else:
        share = "every" if attainment == 1 else "no" if attainment == 0 else percent(attainment)
        noun = "request meets" if attainment in (0, 1) else "of requests meet"
        head = f"{share} {noun} {slo}"
        if is_number(wanted):
            tone = "good" if attainment >= wanted else "bad"
            asked = "" if attainment == wanted == 1 else f", of {percent(wanted)} wanted"
            head = f"{'SLO met' if tone == 'good' else 'SLO missed'}: {head}{asked}"
        elif attainment in (0, 1):
            tone = "good" if attainment == 1 else "bad"
        head = head[0].upper() + head[1:]
    if (is_number(load) and load >= 1) or grows(summary):
        tone = "bad"
    parts = [head, *_goodput(summary, bool(targets) or of_classes), *_distance(summary)]
    return Verdict("; ".join(parts) + ".", _reason(summary), tone)


def grows(summary: Summary) -> bool:
    """Return whether the run found its queue growing, so that latencies depend on the length of
    the run."""
    return any(
        isinstance(warning, dict) and warning.get("code") == "unstable"
        for warning in entries(summary, "warnings")
    )


def slo_targets(summary: Summary) -> dict[str, float]:
    """Return the latency targets that are set, as metric name -> seconds, in the usual order."""
    slo = section(summary, "conditions", "slo")
    targets_s = {name: slo.get(f"{name}_s") for name in LATENCY_LABELS}
    return {name: value_s for name, value_s in targets_s.items() if is_number(value_s)}


def requests_sentence(summary: Summary) -> str:
    """Say how many requests arrived and how they ended."""
    requests = section(summary, "requests")
    arrived = requests.get("arrived")
    if not is_number(arrived) or arrived == 0:
        return ""
    noun = "request" if arrived == 1 else "requests"
    if requests.get("finished") == arrived:
        return f"{arrived:,.0f} {noun} arrived and finished."
    reasons = section(summary, "requests", "reject_reasons")
    parts = []
    for outcome in ("finished", "rejected", "failed", "abandoned", "unfinished"):
        count = requests.get(outcome)
        if not is_number(count) or (count == 0 and outcome != "finished"):
            continue
        text = f"{count:,.0f} {outcome}"
        if outcome == "rejected" and reasons:
            text += f" ({', '.join(_reason_text(reasons))})"
        parts.append(text)
    return f"{arrived:,.0f} {noun} arrived: {listed(parts)}." if parts else ""


def system_text(summary: Summary) -> str:
    """Describe the system in a few words: ``Llama-3.1-8B on 2 x H200``."""
    conditions = section(summary, "conditions")
    if conditions.get("pools"):
        return f"{conditions.get('model')} on {listed(pool_texts(summary))}"
    gpu, gpus = conditions.get("gpu"), conditions.get("gpus")
    hardware = (
        f"{gpus:,.0f} \N{MULTIPLICATION SIGN} {gpu}" if gpu and is_number(gpus) else str(gpu or "")
    )
    model = str(conditions.get("model") or "")
    return " on ".join(part for part in (model, hardware) if part) or "unnamed system"


def pool_texts(summary: Summary) -> list[str]:
    """Describe each pool in a few words: ``2 x H100-SXM for prefill``."""
    pools = section(summary, "conditions").get("pools") or []
    return [
        f"{pool['replicas']:,} \N{MULTIPLICATION SIGN} {_gpus_of(pool)}"
        + (f" for {pool['role']}" if pool["role"] != "mixed" else f" ({pool['name']})")
        for pool in pools
    ]


def _gpus_of(pool: Mapping[str, Any]) -> str:
    layout = [f"{label} {pool[key]}" for key, label in _LAYOUT[1:] if (pool.get(key) or 1) != 1]
    return f"{pool['gpu']} {' '.join(layout)}".strip()


_LAYOUT = (
    ("replicas", "replicas"),
    ("tensor_parallel_size", "TP"),
    ("pipeline_parallel_size", "PP"),
    ("data_parallel_size", "DP"),
    ("prefill_context_parallel_size", "PCP"),
    ("decode_context_parallel_size", "DCP"),
    ("expert_parallel_size", "EP"),
)


def conditions_text(summary: Summary) -> str:
    """Write conditions and evidence on one line, for the end of the terminal summary."""
    conditions = section(summary, "conditions")
    layout = [
        f"{label} {conditions[key]}"
        for key, label in _LAYOUT
        if is_number(conditions.get(key)) and not conditions.get("pools")
    ]
    policies = [str(conditions[key]) for key in ("scheduler", "router") if conditions.get(key)]
    if conditions.get("pools"):  # each pool has its own policies
        of_pools = (f"{p['name']} {p['scheduler']} {p['router']}" for p in conditions["pools"])
        policies = [f"({', '.join(of_pools)})"]
    cost_model = conditions.get("cost_model")
    seed = conditions.get("seed")
    evidence = ", ".join(
        f"{whole_percent(share)} {label}" for label, share in evidence_shares(summary)
    )
    parts = [
        f"{system_text(summary)} ({', '.join(layout)})" if layout else system_text(summary),
        " ".join([str(conditions.get("engine") or ""), *policies]).strip(),
        str(conditions.get("workload") or ""),
        f"cost: {cost_model}" if cost_model else "",
        f"seed {seed}" if seed is not None else "",
        *(str(note) for note in conditions.get("notes") or []),
        f"evidence: {evidence}" if evidence else "",
    ]
    return " · ".join(part for part in parts if part)


def _targets_text(targets: dict[str, float], itl_of: Any) -> str:
    return ", ".join(
        f"{target_label(name, itl_of)} ≤ {target(target_s)}" for name, target_s in targets.items()
    )


def _without_slo(summary: Summary) -> str:
    ttft_s = value_of(summary, "ttft", "p99")
    rate = value_of(summary, "request_throughput")
    facts = [f"{significant(rate)} requests/s finish"] if rate is not None else []
    facts += [f"99% see a first token within {duration(ttft_s)}"] if ttft_s is not None else []
    return ": ".join(["No SLO is set", listed(facts)]) if facts else "No SLO is set"


def _goodput(summary: Summary, has_slo: bool) -> list[str]:
    goodput = section(summary, "slo").get("goodput_per_s")
    if not has_slo or not is_number(goodput):
        return []
    return [f"goodput is {significant(goodput)} requests/s"]


def _distance(summary: Summary) -> list[str]:
    saturation = section(summary, "saturation")
    load, limit = saturation.get("load"), saturation.get("saturation_per_s")
    if not is_number(load):
        return []
    at = f" ({significant(limit)} requests/s)" if is_number(limit) else ""
    if load >= 1:
        return [f"the offered load is {significant(load)} times saturation{at}, so queues grow"]
    return [f"the load is {whole_percent(load)} of saturation{at}"]


def parts_sentence(summary: Summary) -> str:
    """Say how near each phase and the network between them are to their own saturation."""
    saturation = section(summary, "saturation")
    limits, offered = saturation.get("by_part_per_s"), saturation.get("offered_per_s")
    if not limits or not is_number(offered):
        return ""
    parts = [
        f"{part if part == 'network' else f'{part} engines'} {whole_percent(offered / limit)} "
        f"({significant(limit)} requests/s)"
        for part, limit in limits.items()
    ]
    return f"Load, of the saturation of each part: {listed(parts)}."


def fleet_sentence(summary: Summary) -> str:
    """Say what the records between engines show: routing, reuse, network."""
    fleet, parts = section(summary, "fleet"), []
    overload = section(fleet, "routing").get("max_over_mean")
    if is_number(overload):
        parts.append(f"the busiest engine has {significant(overload)} times the mean load")
    reuse = section(fleet, "reuse")
    cached, lost = reuse.get("cached_share"), reuse.get("lost_to_routing_share")
    if is_number(cached) and is_number(lost) and (cached or lost):
        fetched = reuse.get("fetched_share")
        brought = f", {percent(fetched)} fetched from another engine," if is_number(fetched) else ""
        parts.append(
            f"{percent(cached)} of prompt tokens come from a cache{brought} and {percent(lost)} "
            "were computed before on another engine"
        )
    network = section(fleet, "network")
    if is_number(network.get("busy_share")):
        link = "core" if network.get("busiest_link") == "core" else "busiest"
        parts.append(f"the {link} link is busy {percent(network['busy_share'])}")
    return f"Between engines, {'; '.join(parts)}." if parts else ""


def _reason(summary: Summary) -> str:
    reasons = []
    met = {
        name: share
        for name, share in section(summary, "slo", "by_target").items()
        if is_number(share)
    }
    lost = _never_finished(summary)
    if met and lost and lost > 1 - lost - min(met.values()):
        reasons.append(f"Most that are not good never finished: {percent(lost)} of requests.")
    elif len(met) > 1 and min(met.values()) < 1:
        name = min(met, key=lambda key: met[key])
        label = LATENCY_LABELS.get(name, humanised(name))
        reasons.append(f"{label} is the tighter target, met by {percent(met[name])}.")
    accounts = account_rows(summary, "e2e_accounts_s")
    if accounts:
        largest = max(accounts, key=lambda row: row.share)
        reasons.append(
            f"The largest part of end-to-end time is {largest.label}: {percent(largest.share)}."
        )
    return " ".join(reasons)


def _never_finished(summary: Summary) -> float:
    """Return the share of arrived requests that did not finish."""
    requests = section(summary, "requests")
    arrived, finished = requests.get("arrived"), requests.get("finished")
    return 1 - finished / arrived if is_number(finished) and is_number(arrived) and arrived else 0.0


def _reason_text(reasons: dict[str, Any]) -> list[str]:
    if len(reasons) == 1:
        return [str(reason) for reason in reasons]
    return [f"{count} {reason}" for reason, count in reasons.items()]


SENTENCES: tuple[Callable[[Summary], str], ...] = (
    requests_sentence,
    parts_sentence,
    fleet_sentence,
)
"""Functions that write the sentences below the answer; each returns "" if it has nothing to say."""


def speculation_text(summary: Summary) -> str:
    """Say what was drafted, what was accepted, and what it cost; empty without speculation."""
    facts = section(summary, "speculation")
    if not facts:
        return ""
    drafts = sorted(set(section(facts, "drafts_by_seqs").values()))
    if not drafts:
        return ""
    number = f"{drafts[0]} to {drafts[-1]}" if len(drafts) > 1 else f"{drafts[0]}"
    nodes = " in a tree" if facts.get("tree_nodes") else ""
    parts = [f"Speculation by {facts['method']}, {number} drafted tokens{nodes} a step"]
    length, rate = value_of(summary, "accepted_length"), value_of(summary, "acceptance_rate")
    if length is not None:
        parts.append(f"{significant(length)} tokens a step and sequence")
    if rate is not None:
        parts.append(f"{percent(rate)} of the drafts accepted")
    said = ", ".join(parts)
    draft, waste = facts.get("draft_share"), facts.get("waste_share")
    if is_number(draft) and is_number(waste):
        said += f"; drafting takes {percent(draft)} of the GPUs' time, rejected work "
        said += percent(waste)
    kept, accepted = section(facts, "keeps_target_distribution"), section(facts, "acceptance")
    said += f". Keeps the target's distribution: {kept.get('value')} ({kept.get('source')})."
    return f"{said} Acceptance is {accepted.get('label')}: {accepted.get('source')}."
