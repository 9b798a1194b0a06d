"""Rates that stand for what a table says of many equal batches, by least relative error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from costmodels.operator_tables.lookup import Labels
from costmodels.operator_tables.table import Array

DecodeSeconds = Callable[[Array, Array], tuple[Array, Labels]]
"""Sequences and the context of each, the new token included, to seconds of one layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeFit:
    """Decodes of one layer, by number of sequences: arrays ``[max_num_seqs + 1]``."""

    seqs_s: Array
    """All sequences together, beyond the launch."""
    token_s: Array
    """A token of their contexts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkFit:
    """Chunks of prompts in one layer, beyond the launch."""

    chunk_s: float
    """A chunk, whatever its tokens."""
    token_s: float
    pair_s: float = 0.0
    prefix_s: float = 0.0


def within(values: Array, measured: Array) -> Array:
    """Those of ``values`` inside what was measured; its ends if fewer than two are."""
    low, high = measured.min(), measured.max()
    inside = values[(values >= low) & (values <= high)]
    return inside if len(inside) > 1 else np.unique([low, high])


def decode_lines(
    seconds: DecodeSeconds, seqs: Array, contexts: Array, seq_tokens: int
) -> tuple[Array, Array]:
    """Fixed seconds, and seconds a token of all contexts, of each number of sequences: ``[n]``.

    The least squares of relative errors; neither is negative.
    """
    at = np.repeat(seqs, len(contexts)), np.tile(contexts, len(seqs))
    measured = seconds(*at)[0].reshape(len(seqs), len(contexts))
    if len(contexts) == 1:
        return measured[:, 0], np.zeros(len(seqs))
    y = 1 / measured
    # Contexts count the new token, which seq_tokens counts again.
    x = y * seqs[:, None] * (contexts - 1 + seq_tokens)
    yy, xy, xx = (y * y).sum(1), (x * y).sum(1), (x * x).sum(1)
    sum_y, sum_x = y.sum(1), x.sum(1)
    determinant = np.maximum(yy * xx - xy * xy, 1e-300)
    fixed = (sum_y * xx - sum_x * xy) / determinant
    rate = (sum_x * yy - sum_y * xy) / determinant
    fixed, rate = (
        np.where(rate < 0, sum_y / yy, np.maximum(fixed, 0.0)),
        np.where(fixed < 0, sum_x / xx, np.maximum(rate, 0.0)),
    )
    return fixed, rate


def fit_rates(features: list[Array], seconds: Array, launch_s: float) -> list[float]:
    """Non-negative rates of the features with the least squared relative error."""
    from scipy.optimize import nnls  # a quarter of a second that others need not wait

    columns = np.stack(features, axis=1)
    scale = np.maximum(columns.mean(axis=0), 1e-9)
    weighted = columns / scale / seconds[:, None]
    rates, _ = nnls(weighted, np.maximum(1 - launch_s / seconds, 0.0))
    return [float(rate) for rate in rates / scale]
