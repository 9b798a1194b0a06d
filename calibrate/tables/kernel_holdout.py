"""Judge how well a table predicts shapes it was not built from: a fifth of them, chosen by a
hash."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from costmodels.tables.kinds import KINDS
from costmodels.tables.shapes import LOOKUPS
from costmodels.tables.table import HeldOutError, OperatorTable
from costmodels.work import Array

_PARTS = 5


def is_held_out(table: OperatorTable) -> NDArray[np.bool_]:
    """Return a mask ``[n]`` of a fifth of the shapes, by the SHA-256 of family and shape, so
    that it is equal in every table of a family."""
    kind = table.meta.kind
    rows = zip(*(table.columns[name].tolist() for name in KINDS[kind].shape), strict=True)
    texts = (" ".join([kind, *(f"{value:g}" for value in row)]) for row in rows)
    digests = [int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) for text in texts]
    return np.array([digest % _PARTS == 0 for digest in digests])


def held_out_error(table: OperatorTable) -> HeldOutError | None:
    """Return the median and 90th percentile of the error at the held-out fifth; None if the
    fifth is empty."""
    held_out = is_held_out(table)
    if not held_out.any() or held_out.all():
        return None
    errors = held_out_errors(table, held_out)
    inside = errors[np.isfinite(errors)]
    return HeldOutError(
        median=float(np.median(inside)) if inside.size else None,
        p90=float(np.quantile(inside, 0.9)) if inside.size else None,
        num_points=int(inside.size),
        num_outside=int(errors.size - inside.size),
    )


def held_out_errors(table: OperatorTable, held_out: NDArray[np.bool_]) -> Array:
    """Return the |relative error| at each held-out shape; nan for shapes outside the range of
    the others."""
    rest = {name: column[~held_out] for name, column in table.columns.items()}
    left_out = {name: column[held_out] for name, column in table.columns.items()}
    lookup = LOOKUPS[table.meta.kind](replace(table, columns=rest))
    same = KINDS[table.meta.kind].same
    errors = np.full(int(held_out.sum()), np.nan)
    known = set(zip(*(rest[name].tolist() for name in same), strict=True))
    keys = list(zip(*(left_out[name].tolist() for name in same), strict=True))
    chosen = np.array([key in known for key in keys]) if same else np.ones(len(errors), np.bool_)
    if chosen.any():
        columns = {name: column[chosen] for name, column in left_out.items()}
        seconds, labels = lookup.columns_seconds(columns)
        relative = np.abs(seconds / columns["seconds"] - 1)
        errors[chosen] = np.where(labels == "extrapolated", np.nan, relative)
    return errors
