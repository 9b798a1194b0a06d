"""Steps to price: their totals as columns, with any mixture of decodes and a chunk, and longer
ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from sim.shape import (
    Clip,
    StepShape,
    chunk_shape,
    decode_shape,
    grown,
    joined,
    shape_columns,
    shape_values,
)


def columns_of(
    shape: StepShape, clips: tuple[Clip, ...] = (), *, shares_prefixes: bool = False
) -> dict[str, Any]:
    """The columns of a log that holds this one step."""
    names = shape_columns(clips, shares_prefixes=shares_prefixes)
    values = zip(names, shape_values(shape), strict=True)
    return {name: np.array([float(value)]) for name, value in values}


@st.composite
def mixed_steps(
    draw: st.DrawFn, *, decodes: int, context: int, tokens: int, start: int
) -> StepShape:
    """Some decodes at one context and perhaps a chunk of a prompt, each up to what is given."""
    decoding = decode_shape(draw(st.integers(0, decodes)), draw(st.integers(1, context)))
    prompt = draw(st.integers(0, tokens))
    chunks = [chunk_shape(draw(st.integers(0, start)), prompt)] if prompt else []
    return joined([decoding, *chunks])


def longer(shape: StepShape, tokens: int) -> StepShape:
    """The step with that many more tokens in its chunk or, where it has none, in each context."""
    if not shape.prefill_seqs:
        return grown(shape, tokens)
    chunk = chunk_shape(shape.prefill_context_tokens, shape.prefill_tokens + tokens)
    return joined([decode_shape(shape.decode_seqs, 0), chunk])._replace(
        decode_context_tokens=shape.decode_context_tokens
    )
