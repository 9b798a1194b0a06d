"""Sentences that answer a plan, and how it writes fleets, targets and loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.numbers import (
    LATENCY_LABELS,
    duration,
    humanised,
    listed,
    share_text,
    significant,
    target,
    target_label,
    whole_percent,
)

Content = dict[str, Any]
"""Content of plan.json."""

_STEPS = 6
"""Most decreases in cost that are listed for a sampled search, after the first."""


def headline(content: Content) -> str:
    """Give the answer in one sentence."""
    load = level_text(content, content["question"]["level"])
    cheapest, sampled = content["counts"]["cheapest"], content["sampled"]
    if cheapest is None:
        which = "that was tried " if sampled else ""
        return f"No fleet {which}meets the targets ({targets_text(content)}) at {load}."
    return (
        f"The cheapest fleet {'found ' if sampled else ''}for {load} is {fleet_text(cheapest)}: "
        f"{usd(cheapest['usd_per_h'])} an hour. It meets {targets_text(content)}."
    )


def reasons(content: Content) -> tuple[str, ...]:
    """Return the sentences behind the answer; those without content are empty."""
    return (
        demand_sentence(content),
        sampled_sentences(content),
        certainty(content),
        room(content),
        model_sentence(content),
        spare_sentence(content),
    )


def demand_sentence(content: Content) -> str:
    """Say how the planned load was derived; empty if it was given directly."""
    asked = content["question"]
    parts = []
    if asked["growth_per_year"] and asked["years"]:
        growth = f"{asked['growth_per_year']:+.0%} a year for {asked['years']:g} years"
        parts.append(growth.replace("for 1 years", "for a year"))
    if asked["peak"] != 1:
        parts.append(f"a peak of {asked['peak']:g} times the mean")
    if not parts:
        return ""
    now, level = (level_text(content, asked[key]) for key in ("now", "level"))
    return f"{level} is {now} today, {' and '.join(parts)}."


def sampled_sentences(content: Content) -> str:
    """Say what was tried of a sampled search space and how the cost fell; empty if every
    candidate was tried."""
    row = content["sampled"]
    if row is None:
        return ""
    of = "endlessly many" if row["candidates"] is None else f"{row['candidates']:,}"
    count = len(row["unreadable"])
    ruled_out = row["tried"] - row["simulated"] - count
    parts = [f"{row['simulated']:,} simulated"]
    if ruled_out:
        parts.append(f"{ruled_out:,} ruled out by bounds")
    if count:
        parts.append(f"{count:,} with values that do not go together ({row['unreadable'][0]})")
    text = (
        f"Candidates were sampled: {row['tried']:,} of {of}, chosen by Optuna (seed "
        f"{row['seed']}): {listed(parts)}. "
    )
    if not row["best"]:
        return f"{text}Another may meet the targets."
    return f"{text}A cheaper fleet may exist. {_curve(row['best'])}"


def _curve(best: Sequence[Mapping[str, Any]]) -> str:
    """Write ``The cheapest so far was $9.00 an hour after 1 trial, $7.50 after 12``, with only
    the last of many decreases."""
    first = f"{usd(best[0]['usd_per_h'])} an hour after {best[0]['trials']:,} trial"
    rest = [f"{usd(one['usd_per_h'])} after {one['trials']:,}" for one in best[1:][-_STEPS:]]
    told = [f"{first}{'s' * (best[0]['trials'] != 1)}", *rest]
    return f"The cheapest so far was {', '.join(told)}."


def certainty(content: Content) -> str:
    """Say how certain it is that the targets are met; empty if no fleet was found."""
    if not content["ranked"]:
        return ""
    asked, best = content["question"], content["ranked"][0]
    row, attained = asked["targets"][best["worst"]], best["attained"][best["worst"]]
    another, lowest = f"another {asked['requests']:,} requests", "the worst run"
    if asked["fixed"]:
        another, lowest = "another trace like this one, as its tenths differ,", "such a one"
    text = (
        f"With {asked['confidence']:.0%} confidence {another} would meet them too. Nearest to its "
        f"limit is {target_name(row)}: {share_text(attained['share'])} keep within "
        f"{target(row['within_s'])}, {share_text(row['share'])} must"
    )
    if attained["lowest"] is not None and attained["lowest"] < attained["share"]:
        text += f", and in {lowest} {share_text(max(attained['lowest'], 0.0))} do"
    return f"{text}."


def room(content: Content) -> str:
    """Say how much load the cheapest fleet carries, and what limits it."""
    if not content["ranked"]:
        return ""
    best = content["ranked"][0]
    binds = f"{best['binding']['sentence']}"
    if best["capacity"] is None:
        most = level_text(content, best["at_least"] or content["question"]["level"])
        return f"No limit was found up to {most}. {binds}"
    more = best["headroom"]
    carries = level_text(content, best["capacity"])
    how = f"{whole_percent(more)} more than planned for" if more >= 0.005 else "just what is needed"
    return f"It carries up to {carries}, {how}. There {binds[:1]}{binds[1:]}"


def model_sentence(content: Content) -> str:
    """Say how far predicted step times may be off, compared with the headroom."""
    half_width, label = content["evidence"]["half_width"], content["evidence"]["label"]
    if half_width is None:
        return ""
    text = f"Step times may be off by ±{half_width:.0%} (90%): their evidence is {label}"
    headroom = content["ranked"][0]["headroom"]
    if headroom is not None and headroom < half_width:
        text += ", and that is more than the headroom: measure before you buy, or plan for more"
    return f"{text}."


def spare_sentence(content: Content) -> str:
    """Say what N+1 means for this plan, or why there is no such fleet."""
    spare = content["counts"]["spare"]
    if content["counts"]["cheapest"] is None:
        return ""
    if spare is None:
        return "No fleet with one engine to spare can be had within availability and budget."
    kinds = "an engine of either kind" if len(spare["engines"]) > 1 else "a replica"
    load = level_text(content, content["question"]["level"])
    return f"With N+1, {fleet_text(spare)} still meets the targets at {load} with {kinds} down."


def relaxed_sentences(content: Content) -> list[str]:
    """Say which constraint rules out every fleet, and what would relax it."""
    row = content["relaxed"]
    if row is None:
        return []
    nearest, targets = row["nearest"], content["question"]["targets"]
    if row["constraint"] == "memory":
        why = next(one["why"] for one in content["candidates"])
        return [f"Memory binds: no candidate can be built. The first: {why}."]
    if row["constraint"] == "latency":
        at = nearest["refused"]["target"]
        least = row["least_s"][at]
        if least is None:
            return [
                f"{target_text(targets[at])} binds: too many requests are longer than an "
                f"engine takes ({nearest['name']}): a larger max_model_len, more KV cache or "
                "shorter requests relax it."
            ]
        return [
            f"{target_text(targets[at])} binds: even alone on idle engines, requests take "
            f"{duration(least)} on {nearest['name']}, which comes nearest. A target above that, a "
            "faster GPU, a larger tensor_parallel_size or shorter prompts relax it."
        ]
    if row["constraint"] == "targets":
        missed = nearest["missed"]
        binds = target_text(targets[missed["target"]]) if missed else "A target"
        return [
            f"{binds} binds: {nearest['name']} misses it even when requests have engines to "
            f"themselves (with {nearest['tried']:,}). A looser target, a faster GPU, a larger "
            "tensor_parallel_size or smaller steps (max_num_batched_tokens) relax it."
        ]
    return _supply(content, row)


def _supply(content: Content, row: dict[str, Any]) -> list[str]:
    free, asked = row["without_limits"], content["question"]
    had = {offer["gpu"]: offer["available"] for offer in asked["gpus"]}
    short = [
        f"{count:,} {gpu}, and {had[gpu]:,} are to be had"
        for gpu, count in row["needs"].items()
        if had[gpu] is not None and count > had[gpu]
    ]
    budget = asked["budget_usd_per_h"]
    said = []
    if short:
        said.append(f"Availability binds: it would take {listed(short)}.")
    if budget is not None and free["usd_per_h"] > budget:
        said.append(
            f"The budget binds: the cheapest fleet that meets the targets costs "
            f"{usd(free['usd_per_h'])} an hour, and {usd(budget)} are allowed."
        )
    if not said:
        said.append("most_replicas binds.")
    said.append(f"Without these limits {fleet_text(free)} would do, {usd(free['usd_per_h'])}/h.")
    if row["load"] is not None:
        load = level_text(content, row["load"])
        said.append(f"With what can be had, {row['nearest']['name']} carries {load}.")
    return said


def usd(value: float) -> str:
    """Write a price per hour in dollars: $7.50, $1,240."""
    return f"${value:,.2f}" if value < 1000 else f"${value:,.0f}"


def target_name(row: Mapping[str, Any]) -> str:
    """Name a target: ``TTFT p99``, or ``chat TTFT p99`` for a class."""
    of = f"{row['of_class']} " if row["of_class"] else ""
    if row["metric"] == "itl":
        label = target_label("itl", row.get("itl_of"))
        return f"{of}{label}, in {row['share'] * 100:g}% of requests,"
    return f"{of}{LATENCY_LABELS[row['metric']]} p{row['share'] * 100:g}"


def target_text(row: Mapping[str, Any]) -> str:
    """Write a target with its limit: ``TTFT p99 ≤ 500 ms``."""
    return f"{target_name(row)} ≤ {target(row['within_s'])}"


def targets_text(content: Content) -> str:
    """Write all targets with their limits."""
    return ", ".join(target_text(row) for row in content["question"]["targets"])


def level_text(content: Content, level: float) -> str:
    """Write a load with its unit."""
    unit = content["question"]["unit"]
    text = f"{level:,.0f}" if unit in ("users", "requests in flight") else significant(level)
    return f"{text} {unit}"


def runs_text(content: Content) -> str:
    """Write how much was simulated: ``19 runs of 5,000 counted requests``."""
    asked = content["question"]
    runs = asked["replications"]
    return f"{runs:,} run{'s' * (runs != 1)} of {asked['requests']:,} counted requests"


def gpus_of(fleet: Mapping[str, Any]) -> str:
    """Write a fleet's GPUs, ``24 x H100`` (with a multiplication sign), listing every kind."""
    counts: dict[str, int] = {}
    for engine in fleet["engines"]:
        count = engine["replicas"] * engine["gpus"]
        counts[engine["gpu"]] = counts.get(engine["gpu"], 0) + count
    return listed(f"{count:,} \N{MULTIPLICATION SIGN} {gpu}" for gpu, count in counts.items())


def engines_of(fleet: Mapping[str, Any]) -> str:
    """Write a fleet's engines: ``3 replicas of TP 2``, or ``2 prefill engines of TP 4 and 5
    decode engines of TP 8``."""
    parts = []
    for engine in fleet["engines"]:
        role, count = engine["role"], engine["replicas"]
        what = "replica" if role == "mixed" else f"{role} engine"
        parts.append(f"{count:,} {what}{'s' * (count != 1)} of {engine['layout']}")
    return listed(parts)


def fleet_text(fleet: Mapping[str, Any]) -> str:
    """Write a fleet in one line: GPUs, engines and options."""
    options = [option_text(key, value) for key, value in fleet["options"].items()]
    return f"{gpus_of(fleet)} ({', '.join([engines_of(fleet), *options])})"


def option_text(key: str, value: Any) -> str:
    """Write an option as words: ``kv cache_dtype fp8``."""
    section, _, name = key.rpartition(".")
    shown = f"{value:,}" if isinstance(value, int) else str(value)
    if value is None or isinstance(value, bool):
        shown = {True: "on", False: "off", None: "none"}[value]
    return f"{section} {name} {shown}".strip()


def account_text(name: str | None) -> str:
    """Write an account's name as words."""
    return "" if name is None else humanised(name)
