"""Sentences that answer a what-if: the best change, the gain per GPU, and all changes together
against their product."""

from __future__ import annotations

from typing import Any

from reports.numbers import is_number, listed, number, percent
from reports.run.answer import system_text
from reports.whatif.words import (
    Content,
    Variant,
    change_text,
    in_a_sentence,
    ran,
    settings_text,
    spelled,
    spelled_pair,
    told_apart,
)

_CLOSE = 0.1
"""Share of a figure up to which a product that is no different from it is called the same."""
_PREFIX_CACHING = "kv.enable_prefix_caching"


def nothing_sentence(content: Content) -> str:
    """Say which changes are so already, and which are about prefixes that no requests share."""
    said = []
    for variant in ran(content):
        if variant["changes_nothing"]:
            said.append(f"{variant['name']} is so already ({settings_text(variant)}).")
    about = [variant["name"] for variant in ran(content) if _PREFIX_CACHING in variant["settings"]]
    if about and not content["baseline"].get("shares_prefixes", True):
        said.append(
            "These requests share no prefixes, so nothing can be hit, whether caching is on or "
            "off: describe what yours share (workload.generator.system_prompts, documents or "
            "sessions), or give a trace with prefix ids."
        )
    return " ".join(said)


def heading(content: Content) -> str:
    """Name the baseline's system."""
    return system_text({"conditions": content["baseline"]["conditions"]})


def headline(content: Content) -> str:
    """Say which change is best for the deciding figure, and by how much."""
    answer = content["answer"]
    figure = figure_of(content, answer["figure"])
    label, base = in_a_sentence(figure["key"]), content["baseline"]["values"].get(figure["key"])
    best = find(content, answer["best"])
    if best is None:
        return f"{_none_is_better(content, figure)} {label}: {spelled(base, figure)} now."
    after, before = spelled_pair(best["values"][figure["key"]], base, figure)
    delta = best["deltas"][figure["key"]]
    change = f"{'~ ' if delta['holds_zero'] else ''}{change_text(delta, figure)}"
    who = _subject(best, "is", "are")
    where = ", on this trace" if content["method"]["is_recorded"] else ""
    return (
        f"{who} best for {label}{where}: {after} instead of {before} ({change})"
        f"{_gpus(content, best)}."
    )


def per_gpu_sentence(content: Content) -> str:
    """Say what gains the most per GPU, because more GPUs alone make most systems faster."""
    answer = content["answer"]
    figure = figure_of(content, answer["per_gpu_figure"])
    base = content["baseline"]["values"].get(figure["key"])
    gpus = {v["values"].get("gpus") for v in (content["baseline"], *ran(content))}
    if not is_number(base) or (answer["figure"] == "goodput" and len(gpus) == 1):
        return ""  # nothing to add to the first sentence
    at = "at saturation" if figure["key"] == "saturation_per_gpu" else "within the SLO"
    best = find(content, answer["best_per_gpu"])
    if best is None and all(variant["changes_demand"] for variant in ran(content)):
        return ""
    if best is None:
        return (
            f"Per GPU, no change gives more than the baseline: {spelled(base, figure)} a GPU {at}."
        )
    after = spelled(best["values"][figure["key"]], figure)
    change = change_text(best["deltas"][figure["key"]], figure)
    return (
        f"Per GPU, {_subject(best, 'gives', 'give', start=False)} the most: {after} a GPU "
        f"{at} instead of {number(base, figure['unit'])} ({change})."
    )


def slo_sentence(content: Content) -> str:
    """Say which variants, including the baseline, miss the SLO."""
    answer = content["answer"]
    missing = [
        f"{variant['name']} ({percent(variant['values']['attainment'])})"
        for variant in (content["baseline"], *ran(content))
        if variant["name"] in answer["misses_slo"]
    ]
    if not missing:
        return ""
    return f"Less than {answer['good_enough']:.0%} of requests meet the SLO: {listed(missing)}."


def together_sentence(content: Content) -> str:
    """Say whether all changes at once do more or less than the product of the single ones."""
    together = content["together"]
    if together["why_no_variant"]:
        return f"There is no variant of all changes: {together['why_no_variant']}."
    if together["why_no_product"]:
        return f"There is no product of the single changes: {together['why_no_product']}."
    key = content["answer"]["figure"]
    row = together["figures"].get(key)
    if row is None:
        return ""
    figure = figure_of(content, key)
    base = content["baseline"]["values"][key]
    product, _ = spelled_pair(row["product"], base, figure)
    whole, _ = spelled_pair(row["product"] + row["delta"], base, figure)
    verdict = together_verdict(row, figure)
    if is_number(row.get("most")):
        most, _ = spelled_pair(row["most"], base, figure)
        return (
            f"If effects multiplied, {listed(together['of'])} would together bring "
            f"{in_a_sentence(key)} to {product}, more than the {most} that arrive: their gains "
            f"overlap. Simulated, it is {whole}."
        )
    return (
        f"If effects multiplied, {listed(together['of'])} would together bring "
        f"{in_a_sentence(key)} to {product}; simulated, it is {whole}: {verdict}."
    )


def why_sentence(content: Content) -> str:
    """Say why this figure decides."""
    answer = content["answer"]
    label = in_a_sentence(answer["figure"])
    label = label[0].upper() + label[1:]
    if answer["why"] == "asked for":
        return f"{label} decides what is best, as asked."
    return f"{label} decides what is best, as {answer['why']}; --by names another."


def method_text(content: Content) -> str:
    """Explain how the intervals are computed and what they leave out."""
    method, counted = content["method"], content["baseline"]["counted"]
    requests = f"{counted:,} finished requests"
    level = f"{method['confidence']:.0%}"
    if method["kind"] == "replications":
        count, first = method["replications"], method["first_seed"]
        text = (
            f"Means over {count} replications (seeds {first} to {first + count - 1}; {requests} "
            f"of the baseline); ± is the {level} t interval of the paired differences"
        )
    elif method["kind"] == "sections":
        why = "of the recorded trace" if method["is_recorded"] else "of each variant"
        text = (
            f"One run {why} ({requests} of the baseline); ± is the {level} t interval of the "
            f"paired differences without each of {method['sections']} consecutive sections in "
            "turn: of means batch means, of percentiles the jackknife (a p99 has 5 sections, and "
            "none below 10,000 requests)"
        )
    else:
        text = (
            f"One run of each variant ({requests} of the baseline): too few requests for an "
            "interval, which takes 1,000"
        )
    if method["is_recorded"]:
        text += (
            ". On this very trace the differences are as they stand; ± says how far another "
            "stretch of such traffic may be from them"
        )
    return (
        f"{text}. All variants serve the same requests with the same random numbers, so chance and "
        "most of the model's own error, which moves all of them alike, cancel in a difference; "
        "the intervals are of chance alone."
    )


def zero_text(content: Content) -> str:
    """Explain what ``~`` means."""
    if content["method"]["is_recorded"]:
        return "~ the interval holds zero: another stretch of such traffic may show no difference"
    return "~ the interval holds zero: no difference is shown"


def find(content: Content, name: str | None) -> Variant | None:
    """Return a variant that ran, by name."""
    return next((variant for variant in ran(content) if variant["name"] == name), None)


def figure_of(content: Content, key: str) -> dict[str, Any]:
    """Return the description of a figure."""
    figure: dict[str, Any] = next(f for f in content["figures"] if f["key"] == key)
    return figure


def _none_is_better(content: Content, figure: dict[str, Any]) -> str:
    comparable = [variant for variant in ran(content) if not variant["changes_demand"]]
    changes = [variant["deltas"].get(figure["key"]) or {} for variant in comparable]
    if not comparable:
        return "Every change is one of the demand, so none is best;"
    if all(change.get("delta") == 0 for change in changes):
        return "No change moves"
    if all(told_apart(change) for change in changes):
        return "No change improves"
    return "No change can be told from the baseline in"


def together_verdict(row: dict[str, Any], figure: dict[str, Any]) -> str:
    """Compare all changes together with the product of the single ones, in a few words."""
    if is_number(row.get("most")):
        return "more than arrive: the gains overlap"
    whole = abs(row["product"] + row["delta"])
    if row["holds_zero"] and abs(row["delta"]) > _CLOSE * whole:
        return "the interval is too wide to tell it from the product"
    if row["delta"] == 0 or row["holds_zero"]:
        return "the product, within the interval"
    if change_text(row, figure).startswith("0.0"):
        return "the product, to a tenth of a percent"
    beyond = (row["delta"] < 0) == (figure["better"] == "lower")
    more = "more" if row["delta"] > 0 else "less"
    return f"the whole is {more} than the product, which is {'better' if beyond else 'worse'}"


def _subject(variant: Variant, one: str, several: str, *, start: bool = True) -> str:
    if variant["kind"] == "together":
        return f"{'All' if start else 'all'} changes together {several}"
    return f"{variant['name']} {one}"


def _gpus(content: Content, variant: Variant) -> str:
    before, after = (v["values"].get("gpus") for v in (content["baseline"], variant))
    if before == after or not is_number(after) or not is_number(before):
        return ""
    noun = "GPU" if after == 1 else "GPUs"
    return f", on {after:,.0f} {noun} instead of {before:,.0f}"
