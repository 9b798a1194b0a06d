"""B21 and B16: kernel curves, with half of the points predicting the other half; DeepEP's
latency."""

from __future__ import annotations

from costmodels.hardware.kernel_curves import attention_curve, fit_saturation
from tests.published.models.kernels import deepep_fixed_s, deepep_points, low_latency_all_to_all_s
from tests.published.rows import Row, Section, met


def held_out(generation: str) -> list[Row]:
    """Every second point sets the curve; the others are predicted. Shares of the bf16 peak."""
    curve = attention_curve(generation)
    lengths = list(curve.points)
    fitted = fit_saturation({tokens: curve.points[tokens] for tokens in lengths[::2]})
    return [
        Row(f"{generation} {tokens:,}", fitted.at(tokens), curve.points[tokens], "", 0.05)
        for tokens in lengths[1::2]
    ]


def deepep_rows() -> list[Row]:
    """The fixed time is from EP8 dispatch alone; bandwidths are those of the parts."""
    fixed_s = deepep_fixed_s()
    rows = []
    for place, (way, ranks, num_bytes, seconds) in enumerate(deepep_points()):
        ours = low_latency_all_to_all_s(ranks, num_bytes, fixed_s)
        bar = 0.25 if place else None
        rows.append(Row(f"{way} EP{ranks}", ours * 1e6, seconds * 1e6, "us", bar))
    return rows


def sections() -> list[Section]:
    """Return the sections of B21 and B16."""
    curves = [row for generation in ("fa3", "fa2") for row in held_out(generation)]
    deepep = deepep_rows()
    return [
        Section(
            "B21 attention forward on H100, head_dim 128: share of the bf16 peak",
            "512, 2K and 8K tokens set most / (1 + half / tokens); the others are predicted",
            curves,
            (f"within 5%: {met(curves)}",),
        ),
        Section(
            "B16 DeepEP low-latency all-to-all, 128 tokens a rank, top 8 of 7168",
            f"fixed {deepep_fixed_s() * 1e6:.0f} us, from EP8 dispatch alone, and bytes over 160 "
            "GB/s NVLink or 50 GB/s network, whichever takes longer",
            deepep,
            (f"within 25%: {met(deepep)}",),
        ),
    ]
