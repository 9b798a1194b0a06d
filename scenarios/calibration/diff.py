"""Compare two calibrations: the ratio of their times wherever both cover a shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from costmodels.operators.sources import AIC, OURS
from costmodels.tables.kinds import KINDS
from costmodels.tables.lookup import Lookup
from costmodels.tables.shapes import LOOKUPS
from costmodels.tables.table import OperatorTable
from costmodels.work import Array
from scenarios.calibration.contents import DEFAULT_GPU, load_named, table_facts
from sim import __version__
from sim.errors import ScenarioError

_WORST = 5
# The shortest and the longest fifth of the shapes distinguish a fixed time from a rate.
_END_SHARE = 0.2


def diff_facts(left: str, right: str, gpu: str | None) -> dict[str, Any]:
    """Return ratios left over right, by pair of tables of equal kind, formats and variant.

    Raises `ScenarioError` for calibrations of different GPUs, or with nothing in common.
    """
    tables = _load_both(left, right, gpu)
    pairs = [pair for a in tables[0] for b in tables[1] if (pair := _compared(a, b)) is not None]
    if not pairs:
        kinds = [", ".join(dict.fromkeys(t.meta.kind for t in side)) for side in tables]
        raise ScenarioError(
            f"{left} and {right} have no shape in common: {left} has {kinds[0]}; "
            f"{right} has {kinds[1]}"
        )
    return {
        "fleetcast_version": __version__,
        "left": left,
        "right": right,
        "gpu": tables[0][0].meta.gpu,
        "pairs": pairs,
        "only_left": _only(tables[0], tables[1]),
        "only_right": _only(tables[1], tables[0]),
    }


def _load_both(
    left: str, right: str, gpu: str | None
) -> tuple[list[OperatorTable], list[OperatorTable]]:
    names = (left, right)
    files = [load_named(n, gpu) if n not in (OURS, AIC) else None for n in names]
    known = gpu or next((side[0].meta.gpu for side in files if side), DEFAULT_GPU)
    a, b = (side or load_named(n, known) for side, n in zip(files, names, strict=True))
    gpus = {side[0].meta.gpu for side in (a, b)}
    if len(gpus) > 1:
        raise ScenarioError(
            f"{left} is of {a[0].meta.gpu}, {right} of {b[0].meta.gpu}: times of different GPUs "
            "are not compared"
        )
    return a, b


def _compared(a: OperatorTable, b: OperatorTable) -> dict[str, Any] | None:
    """Compare two tables; return None if they measure different things or share no shape."""
    same = a.meta.kind == b.meta.kind and _formats(a) == _formats(b)
    if not same or (a.meta.kind != "grouped_gemm" and a.meta.variant != b.meta.variant):
        return None
    columns, left_s, right_s, exact = _common(a, b)
    if not len(left_s):
        return None
    ratios = left_s / right_s
    order = np.argsort(-np.abs(np.log(ratios)))[:_WORST]
    names = KINDS[a.meta.kind].shape
    facts_a, facts_b = table_facts(a), table_facts(b)
    low, median, high = np.quantile(ratios, [0.1, 0.5, 0.9])
    return {
        "family": a.meta.kind,
        "formats": facts_a["formats"],
        "variants": [a.meta.variant, b.meta.variant],
        "kernels": [a.meta.kernel, b.meta.kernel],
        "engines": [facts_a["engine"], facts_b["engine"]],
        "shapes": len(ratios),
        "equal_shapes": int(exact.sum()),
        "median": float(median),
        "p10": float(low),
        "p90": float(high),
        "worst": [
            {
                "shape": {name: float(columns[name][row]) for name in names},
                "left_s": float(left_s[row]),
                "right_s": float(right_s[row]),
            }
            for row in order
        ],
        "points": [left_s.tolist(), ratios.tolist()],
        "why": _why(a, b, left_s, right_s),
    }


def _formats(table: OperatorTable) -> tuple[str, ...]:
    precision, kind = table.meta.precision, table.meta.kind
    if kind in ("gemm", "grouped_gemm"):
        return precision.activations, precision.weights
    return precision.activations, precision.kv


def _common(a: OperatorTable, b: OperatorTable) -> tuple[dict[str, Array], Array, Array, Array]:
    """Return shapes of ``a`` within ``b``'s range: columns, times of both, whether ``b`` has
    them."""
    lookup = LOOKUPS[b.meta.kind](b)
    chosen = _known(lookup, a)
    columns = {name: column[chosen] for name, column in a.columns.items()}
    if not chosen.any():
        return columns, np.empty(0), np.empty(0), np.empty(0, np.bool_)
    seconds, labels = lookup.columns_seconds(columns)
    inside = labels != "extrapolated"
    columns = {name: column[inside] for name, column in columns.items()}
    return columns, columns["seconds"], seconds[inside], labels[inside] == "measured"


def _known(lookup: Lookup, a: OperatorTable) -> Array:
    same = KINDS[a.meta.kind].same
    if not same:
        return np.ones(len(a), np.bool_)
    keys = list(zip(*(a.columns[name].tolist() for name in same), strict=True))
    lacks = {key: lookup.lack(dict(zip(same, key, strict=True))) for key in set(keys)}
    return np.array([not lacks[key] for key in keys])


def _why(a: OperatorTable, b: OperatorTable, left_s: Array, right_s: Array) -> list[str]:
    """Return what is known to differ, and whether times differ by a constant or by a factor."""
    found = []
    for what, values in {
        "kernel": (a.meta.kernel, b.meta.kernel),
        "engine": (a.meta.engine, b.meta.engine),
        "launches": (_launches(a), _launches(b)),
        "clock": (_clock(a), _clock(b)),
        "routing" if a.meta.kind == "grouped_gemm" else "variant": (
            a.meta.variant,
            b.meta.variant,
        ),
    }.items():
        if values[0] != values[1]:
            found.append(f"{what}: {values[0] or 'none'} against {values[1] or 'none'}")
    count = max(1, int(_END_SHARE * len(left_s)))
    order = np.argsort(right_s)
    short, long = order[:count], order[-count:]
    apart_s = float(np.median(left_s[short] - right_s[short]))
    factor = float(np.median(left_s[long] / right_s[long]))
    found.append(
        f"the shortest fifth is {1e6 * abs(apart_s):.1f} us "
        f"{'longer' if apart_s > 0 else 'shorter'}, the longest takes {factor:.2f} times as long"
    )
    return found


def _launches(table: OperatorTable) -> str:
    return {
        "graph": "left out (CUDA graph)",
        "eager": "in the time",
        "both": "in part of the times",
        "host": "none: the host is the device",
    }.get(table.meta.launches, "not known")


def _clock(table: OperatorTable) -> str:
    return "bursts, not throttled" if table.meta.is_cool else "a loop, may be throttled"


def _only(these: Sequence[OperatorTable], those: Sequence[OperatorTable]) -> list[str]:
    """Return the families that only one side has."""
    others = {table.meta.kind for table in those}
    return sorted({table.meta.kind for table in these} - others)
