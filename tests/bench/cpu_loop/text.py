"""Write the comparison of a loop with its prediction for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

from tests.bench.cpu_loop.shape import GROUPS

if TYPE_CHECKING:
    from tests.bench.cpu_loop.run import ComparedStep, Comparison

_KINDS = ("decode", "prefill", "extend", "mixed")


def comparison_lines(found: Comparison) -> Iterator[str]:
    """All of it: steps, errors by kind, and where their time goes."""
    model = found.model
    yield (
        f"A decoder of {model.layers} layers (hidden {model.hidden}, {model.heads} query and "
        f"{model.kv_heads} KV heads of {model.head_dim}, FFN {model.inter}, vocabulary "
        f"{model.vocab}; float32, random weights)"
    )
    yield f"on {found.machine}; load {found.load:.1f}. Priced from operators measured in turns with"
    yield f"the loop ({found.num_lines} lines); nothing is fitted to its steps."
    yield ""
    yield _row("step", "decodes", "context", "chunk", "prefix", "measured", "predicted", "error")
    for one in found.steps:
        step = one.step
        yield _row(
            step.kind,
            str(step.decodes or "-"),
            str(step.context_tokens if step.decodes else "-"),
            str(step.chunk_tokens or "-"),
            str(step.prefix_tokens if step.chunk_tokens else "-"),
            f"{one.measured_s * 1e3:.2f} ms",
            f"{one.predicted_s * 1e3:.2f} ms",
            f"{one.error:+.1%}" + ("" if one.is_quiet else " ?"),
        )
    yield ""
    for kind in _KINDS:
        errors = [one.error for one in found.quiet_steps if one.step.kind == kind]
        if errors:
            yield (
                f"{kind:>8}: median error {median(map(abs, errors)):.1%} "
                f"(mean {sum(errors) / len(errors):+.1%}) over {len(errors)} steps"
            )
    yield (
        f"     all: median error {found.median_error:.1%}, 90th percentile {found.p90_error:.1%}, "
        f"over {len(found.quiet_steps)} steps"
    )
    left = len(found.steps) - len(found.quiet_steps)
    if left:
        yield (
            f"     {left} steps (?) are left out: other processes disturbed all but one or two of "
            "their repeats; a quiet machine measures all"
        )
    yield ""
    yield "Where a step's time goes: measured call by call | predicted"
    yield _row("step", *GROUPS, "host")
    for kind in _KINDS:
        of_kind = [one for one in found.steps if one.step.kind == kind]
        if of_kind:
            yield _row(kind, *_split(of_kind, found.host_s))


def _split(steps: Sequence[ComparedStep], host_s: float) -> list[str]:
    """Mean milliseconds by kind of operator, then of the host."""
    cells = []
    for group in GROUPS:
        measured = sum(one.measured_operator_s[group] for one in steps) / len(steps)
        predicted = sum(one.predicted_operator_s[group] for one in steps) / len(steps)
        cells.append(f"{measured * 1e3:.2f} | {predicted * 1e3:.2f}")
    return [*cells, f"{host_s * 1e3:.2f}"]


def _row(first: str, *cells: str) -> str:
    return f"{first:>8}" + "".join(f"{cell:>14}" for cell in cells)
