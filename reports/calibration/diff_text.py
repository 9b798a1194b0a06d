"""Two calibrations compared, on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.calibration.words import formats_of, shape_text
from reports.screen import Screen
from reports.words import duration


def print_diff(facts: Mapping[str, Any], screen: Screen | None = None) -> None:
    """Print the facts of ``scenarios.calibration.diff``."""
    screen = screen or Screen(max_width=160)
    screen.say(answer_text(facts), "bold")
    screen.heading(f"Times of {facts['left']} over those of {facts['right']}")
    rows = [
        [
            pair_name(pair),
            f"{pair['shapes']:,}",
            _ratio(screen, pair["median"]),
            f"{pair['p10']:.2f} to {pair['p90']:.2f}",
        ]
        for pair in facts["pairs"]
    ]
    screen.table(["", "shapes", "median", "80% lie in"], rows)
    screen.say(
        "At every shape of the first that lies inside the range of the second, read off its table.",
        "dim",
    )
    screen.heading("Why")
    shared, apart = reasons(facts)
    if shared:
        screen.say(f"All differ in {'; '.join(shared)}.")
    for pair, why in zip(facts["pairs"], apart, strict=True):
        screen.say(f"{pair_name(pair)}: {'; '.join(why)}.")
    screen.heading("Where they part most")
    for pair in facts["pairs"]:
        worst = pair["worst"][0]
        screen.say(
            f"{pair_name(pair)}: {duration(worst['left_s'])} and {duration(worst['right_s'])} at "
            f"{shape_text(worst['shape'])}"
        )
    for side, other in (("left", "right"), ("right", "left")):
        if facts[f"only_{side}"]:
            screen.say("")
            screen.say(
                f"In {facts[side]} alone, not in {facts[other]}: "
                f"{', '.join(facts[f'only_{side}'])}.",
                "dim",
            )


def reasons(facts: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Why times differ: what holds for every pair, and what is each one's own."""
    whys = [pair["why"] for pair in facts["pairs"]]
    shared = [why for why in whys[0] if all(why in other for other in whys)]
    shared = shared if len(whys) > 1 else []
    return shared, [[why for why in of_pair if why not in shared] for of_pair in whys]


def answer_text(facts: Mapping[str, Any]) -> str:
    """How far apart the two are, in a sentence."""
    pairs = facts["pairs"]
    shapes = sum(pair["shapes"] for pair in pairs)
    ratios = sorted(pair["median"] for pair in pairs)
    return (
        f"On {facts['gpu']}, {facts['left']} takes {ratios[0]:.2f} to {ratios[-1]:.2f} times as "
        f"long as {facts['right']} (medians of {len(pairs)} pairs of tables, {shapes:,} shapes)."
    )


def pair_name(pair: Mapping[str, Any]) -> str:
    """Family, formats, what else sets the pair apart, and the first one's kernel."""
    variants = " or ".join(dict.fromkeys(filter(None, pair["variants"])))
    parts = (pair["family"], formats_of(pair), variants, f"({pair['kernels'][0]})")
    return " ".join(part for part in parts if part)


def _ratio(screen: Screen, ratio: float) -> Any:
    apart = max(ratio, 1 / ratio) - 1
    style = "green" if apart <= 0.1 else "yellow" if apart <= 0.25 else "red"
    return screen.text(f"{ratio:.2f}", style)
