"""Sentences that describe a recorded workload."""

from __future__ import annotations

from typing import Any, NamedTuple

from reports.numbers import MISSING, duration, is_number, percent, significant, target


def tokens(count: float) -> str:
    """Write a number of tokens: 512, 45,300, 16.1 M."""
    if count >= 1e9:
        return f"{_plain(count / 1e9)} G"
    return f"{_plain(count / 1e6)} M" if count >= 1e6 else f"{count:,.0f}"


def span(seconds: float) -> str:
    """Write a long time in the unit that people would use: 58 min, 7 days."""
    for unit, length_s in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            value = seconds / length_s
            text = f"{value:.0f}" if value >= 9.95 else f"{value:.1f}".removesuffix(".0")
            return f"{text} {unit}"
    return target(seconds) if float(seconds).is_integer() else duration(seconds)


def gap(seconds: float) -> str:
    """Write a time between two events: 40.0 s, 9.9 h."""
    return span(seconds) if seconds >= 7200 else duration(seconds)


def gib(row: dict[str, Any]) -> str:
    """Write the ``capacity_bytes`` of a row in GiB (2**30 bytes)."""
    value = row.get("capacity_bytes")
    return f"{significant(value / 2**30)} GiB" if is_number(value) else MISSING


def _plain(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() else significant(value)


Content = dict[str, Any]
"""What ``fleetcast trace inspect --format json`` prints."""

# Bounds on the CV of gaps within 5 minutes; a Poisson process has 1. Traces of services have 1.0 to
# 1.2 (chat), 2 and more (a few bursty clients) and 13 (on and off); the bounds between them are our
# choice.
_SMOOTH_BELOW, _BURSTY_ABOVE, _VERY_BURSTY_ABOVE = 0.75, 1.3, 3.0
# Counts that vary this much more than the gaps explain come from a changing rate.
_DRIFT_ABOVE = 3.0
_WINDOW_WORDS = {60: "minute", 600: "10 minutes"}


class Answer(NamedTuple):
    """One sentence that describes the workload, and the reasons behind it."""

    sentence: str
    reasons: tuple[str, ...]


def answer(content: Content) -> Answer:
    """Describe rate and lengths first, then arrivals, prefix cache hits, and sessions."""
    prompt, output = content["prompt_tokens"], content["output_tokens"]
    lengths = (
        f"{significant(prompt['mean'])} input and {significant(output['mean'])} output tokens on "
        f"average (p99 {prompt['p99']:,.0f} and {output['p99']:,.0f})"
    )
    arrivals = content["arrivals"]
    if arrivals is None:
        count = f"{content['num_requests']:,} {_plural(content['num_requests'], 'request')}"
        head = f"{count} of {lengths}; {_no_rate(content)}"
    else:
        rate = f"{significant(arrivals['requests_per_s'])} {content['arrivals_of']}/s"
        head = f"{rate} over {span(arrivals['span_s'])}: {lengths}"
    reasons = [_burstiness(content), _reuse_sentence(content), _session_sentence(content)]
    return Answer(f"{head}.", tuple(reason for reason in reasons if reason))


def capacity_for(content: Content, share: float) -> dict[str, Any] | None:
    """Return the least listed capacity that reaches a share of the possible hits.

    None if it is not known, or if the longest request would not fit.
    """
    lru = content["lru"]
    rows = lru["for_share"] if lru else ()
    return next(
        (
            row
            for row in rows
            if row["share_of_possible"] == share
            and row["capacity_tokens"] >= lru["longest_request_tokens"]
        ),
        None,
    )


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"


def _no_rate(content: Content) -> str:
    if content["clock"] == "session":
        return "each session has a clock of its own, so there is no rate"
    if content["clock"] == "none":
        return "they have no times, so there is no rate"
    return "they arrive all at once, so there is no rate"


def _burstiness(content: Content) -> str:
    found = content["arrivals"]
    if found is None:
        return ""
    cv, where = found["interarrival_cv_300s_p50"], "within 5 minutes"
    if not is_number(cv):
        cv, where = found["interarrival_cv"], "over the whole trace"
    drifts_above = _DRIFT_ABOVE * max((cv or 1) ** 2, 1)
    scatter = [(found[f"idc_{w}s"], w) for w in _WINDOW_WORDS if is_number(found[f"idc_{w}s"])]
    drifting = [(idc, w) for idc, w in scatter if idc > drifts_above]
    counts = ""
    if scatter:
        idc, window_s = (drifting or scatter)[0]
        counts = (
            f"the variance of counts per {_WINDOW_WORDS[window_s]} is {significant(idc)} times "
            "that of a Poisson process"
        )
    if content["ticks_spread"]:
        said = "Its clock ticks in coarse steps, so bursts within a tick are not known"
        return f"{said}; {counts}." if counts else f"{said}."
    if not is_number(cv):
        return ""
    if cv < _SMOOTH_BELOW:
        kind = "more evenly than a Poisson process"
    elif cv <= _BURSTY_ABOVE:
        kind = "much like a Poisson process"
    else:
        kind = "in bursts" if cv <= _VERY_BURSTY_ABOVE else "in strong bursts"
    said = f"Arrivals come {kind} (CV of gaps {cv:.2f} {where})"
    if not counts:
        return f"{said}."
    return f"{said}, {'but the rate drifts' if drifting else 'at a steady rate'}: {counts}."


def _reuse_sentence(content: Content) -> str:
    if content["reuse"] is None:
        return "It has no prefix ids, so what a prefix cache would find is not known."
    possible = content["reuse"]["prefix_hit_fraction"]
    if not possible:
        return "No request repeats the beginning of an earlier one: a prefix cache finds nothing."
    said = f"{percent(possible)} of input tokens repeat an earlier prompt's beginning"
    half, most = capacity_for(content, 0.5), capacity_for(content, 0.9)
    if most is None:
        return f"{said}."
    room = f"{tokens(most['capacity_tokens'])} tokens"
    if content["kv_cache"]:
        room += f" ({gib(most)} for {content['kv_cache']['model'].rpartition('/')[2]})"
    said = f"{said}: an LRU cache finds 90% of that with room for {room}"
    return f"{said}, half of it with {tokens(half['capacity_tokens'])}." if half else f"{said}."


def _session_sentence(content: Content) -> str:
    found = content["sessions"]
    if found is None or found["single_turn_fraction"] == 1:
        return ""
    said = (
        f"{found['num_sessions']:,} sessions have {significant(found['turns_mean'])} requests on "
        f"average (p90 {found['turns_p90']:,.0f})"
    )
    for name, between in (("think_time_s", "after an answer"), ("turn_gap_s", "apart")):
        if is_number(found.get(f"{name}_p50")):
            return f"{said}, {duration(found[f'{name}_p50'])} {between} at the median."
    return f"{said}."
