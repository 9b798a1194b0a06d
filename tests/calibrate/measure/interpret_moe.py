"""Run kernels of MoE layers and of int4 weights in Triton's interpreter.

``python -m tests.calibrate.measure.interpret_moe`` prints a JSON object with the relative error of
each check by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import torch

import tests.calibrate.measure.measure_triton  # noqa: F401  (before any kernel)
from calibrate.measure.case import relative_error
from calibrate.measure.kernels import moe_layer, w4a16
from calibrate.measure.kernels.moe_routing import Experts, route

# Experts, tokens, routing. Blocks of 16, 64 and 128 rows; several programs that plan them.
LAYERS = {
    "one token": (Experts(hidden=128, inter=128, top_k=2, num_experts=8, ep=1), 1, "zipf"),
    "odd": (Experts(hidden=64, inter=192, top_k=3, num_experts=8, ep=1), 39, "balanced"),
    "skewed": (Experts(hidden=128, inter=64, top_k=2, num_experts=16, ep=1), 67, "zipf"),
    "many experts": (Experts(hidden=64, inter=64, top_k=4, num_experts=64, ep=1), 41, "zipf"),
    "large blocks": (Experts(hidden=64, inter=64, top_k=2, num_experts=4, ep=2), 203, "zipf"),
    "other ranks": (Experts(hidden=128, inter=64, top_k=4, num_experts=32, ep=8), 150, "zipf"),
    "middle blocks": (Experts(hidden=64, inter=64, top_k=2, num_experts=8, ep=4), 131, "balanced"),
}
FP8 = (Experts(hidden=128, inter=128, top_k=2, num_experts=8, ep=2), 21, "balanced")
# m, n, k: each tile, with and without splits, whole and not.
PRODUCTS = ((1, 512, 1024), (16, 128, 1408), (19, 128, 256), (64, 256, 128), (150, 128, 256))


def layer(experts: Experts, tokens: int, routing: str, number: str) -> float:
    """Two runs with different rows, the second checked; buffers hold nan or rubbish at first."""
    generator = torch.Generator().manual_seed(1)
    weights = moe_layer.make_weights(experts, number, "cpu")
    drawn = [
        moe_layer.make_tokens(
            experts, route(experts, tokens, routing, "cpu", generator), number, generator
        )
        for _ in range(2)
    ]
    most_rows, most_routed = (
        max(len(each.rows) for each in drawn),
        max(each.routed for each in drawn),
    )
    built = moe_layer.make_layer(experts, weights, number, most_rows, most_routed)
    for name, buffer in built.buffers.items():
        if buffer.dtype == torch.int32:
            buffer.fill_(2**30)
        elif not name.endswith("scale"):
            buffer.fill_(float("nan"))
    for each in drawn:
        built.launch(each)
    second = drawn[1]
    out = torch.empty(second.rows.shape)
    moe_layer.in_torch(second, weights, out)
    return relative_error(built.buffers["out"][: len(out)], out)


def checks() -> Iterator[tuple[str, float]]:
    for name, case in LAYERS.items():
        yield f"layer float32 {name}", layer(*case, "float32")
    for name in ("odd", "other ranks"):
        yield f"layer float16 {name}", layer(*LAYERS[name], "float16")
    yield "layer fp8", layer(*FP8, "fp8")
    for number in ("float32", "float16"):
        for m, n, k in PRODUCTS:
            generator = torch.Generator().manual_seed(m)
            product = w4a16.make_product(m, n, k, getattr(torch, number), "cpu", generator)
            product.launch()
            error = relative_error(product.out, product.reference())
            yield f"product {number} {m} x {n} x {k}", error


if __name__ == "__main__":
    print(json.dumps(dict(checks())))
