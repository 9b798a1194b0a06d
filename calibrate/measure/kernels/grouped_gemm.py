"""Measure the routed experts of an MoE layer on one rank: family grouped_gemm.

``tokens`` are those of all ``ep`` ranks; the rank receives those that reach its experts, about
tokens * top_k / ep assignments. ``inter`` is the whole model's, split by ``tp``. The timing covers
sorting rows by expert, gate_up, SiLU and product, down, and the weighted sum; in fp8 also
quantizing the rows. It excludes the router before it and exchanges between ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from calibrate.measure.case import Case, Prepared, num_copies, relative_error
from calibrate.measure.kernels.moe_routing import Experts, experts_of, route
from calibrate.measure.machine import l2_bytes

TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2, "fp8": 4e-2}


class Model(NamedTuple):
    """Experts of a model, as published, on one of tp * ep ranks."""

    hidden: int
    inter: int
    top_k: int
    num_experts: int
    tp: int = 1
    ep: int = 1


_QWEN3_30B_A3B = Model(2048, 768, 8, 128)
_MIXTRAL_8X7B = Model(4096, 14336, 2, 8)
_DEEPSEEK_V3 = Model(7168, 2048, 8, 256)
_GPT_OSS_120B = Model(2880, 2880, 4, 128)
_KIMI_LINEAR = Model(2304, 1024, 8, 256)

# Twice as dense as powers of two, and finer where experts fill their blocks and just beyond.
_TOKENS = (
    *(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 272, 320, 384, 448, 512, 544),
    *(640, 768, 896, 1024, 1088, 1280, 1536, 1792, 2048, 2176, 2560, 3072, 3584, 4096, 4352, 5120),
    *(6144, 7168, 8192, 8704, 10240, 12288, 14336, 16384),
)
_GRIDS: tuple[tuple[str, Model], ...] = (
    ("bfloat16", _QWEN3_30B_A3B),
    ("bfloat16", _QWEN3_30B_A3B._replace(tp=2)),
    ("bfloat16", _QWEN3_30B_A3B._replace(tp=4)),
    ("bfloat16", _MIXTRAL_8X7B._replace(tp=8)),
    ("bfloat16", _MIXTRAL_8X7B._replace(tp=2)),
    ("bfloat16", _DEEPSEEK_V3._replace(ep=32)),
    ("bfloat16", _DEEPSEEK_V3._replace(ep=8)),
    ("bfloat16", _KIMI_LINEAR),
    ("bfloat16", _GPT_OSS_120B),
    ("fp8", _QWEN3_30B_A3B),
    ("fp8", _MIXTRAL_8X7B._replace(tp=2)),
    ("fp8", _DEEPSEEK_V3._replace(ep=32)),
    ("fp8", _DEEPSEEK_V3._replace(ep=8)),
)
_FEW_TOKENS = 256
_FEWEST_DRAWS = 8
"""Fewest copies if there are few tokens. The number of experts they touch is random, and the
mean is wanted."""
_CPU_MODEL = Model(256, 512, 2, 8)
_CPU_TOKENS = (1, 4, 16, 64)


def cases(quick: bool, device: str) -> Iterator[Case]:
    """Yield cases model by model, because weights are kept from case to case."""
    if device == "cpu":
        yield from _cases("torch", "float32", _CPU_MODEL, _CPU_TOKENS[:: 2 if quick else 1])
        return
    grids = [_GRIDS[0], _GRIDS[5], _GRIDS[9]] if quick else _GRIDS
    for number, model in grids:
        tokens = _TOKENS[:: 6 if quick else 1]
        least = model.ep / model.top_k
        yield from _cases("triton", number, model, tuple(t for t in tokens if t >= least))


def _cases(kernel: str, number: str, model: Model, all_tokens: tuple[int, ...]) -> Iterator[Case]:
    for tokens in all_tokens:
        for routing in ("balanced", "zipf"):
            yield Case(
                family="grouped_gemm",
                kernel=kernel,
                formats={"activations": number, "weights": number},
                shape={**model._asdict(), "tokens": tokens, "routing": routing},
            )


def work(case: Case) -> tuple[float, float]:
    """Return FLOPs and least bytes of a call with its expected assignments, equally spread."""
    experts = experts_of(case.shape)
    rows = experts.expected_rows(int(case.shape["tokens"]))
    return _work(experts, rows, min(rows, experts.local_experts), case.formats["weights"])


def _work(experts: Experts, rows: float, touched: float, number: str) -> tuple[float, float]:
    weights = 3 * experts.hidden * experts.inter
    stored, elem = {"fp8": 1, "float32": 4}.get(number, 2), 4 if number == "float32" else 2
    # Per row: hidden in and out, gate_up out and in, the product out and in.
    activations = elem * rows * (2 * experts.hidden + 6 * experts.inter)
    return 2.0 * weights * rows, stored * weights * touched + activations


def prepare(case: Case, device: str, seed: int) -> Prepared:
    """Prepare copies with rows of their own. They share the weights, of which each reads
    different ones."""
    import torch

    from calibrate.measure.kernels import moe_layer as moe

    experts, number = experts_of(case.shape), case.formats["weights"]
    generator = torch.Generator(device).manual_seed(seed)
    weights = moe.make_weights(experts, number, device)

    def tokens() -> moe.Tokens:
        routing = str(case.shape["routing"])
        ids = route(experts, int(case.shape["tokens"]), routing, device, generator)
        return moe.make_tokens(experts, ids, number, generator)

    first = tokens()
    flops, num_bytes = _work(experts, first.routed, first.touched, number)
    fewest = _FEWEST_DRAWS if int(case.shape["tokens"]) <= _FEW_TOKENS else 1
    count = max(fewest, num_copies(num_bytes, l2_bytes(device)))
    copies = [first, *(tokens() for _ in range(count - 1))]
    rows = sum(copy.routed for copy in copies) / count
    touched = sum(copy.touched for copy in copies) / count
    flops, num_bytes = _work(experts, rows, touched, number)
    run, out = _runner(case.kernel, experts, weights, number, copies)

    def error() -> float:
        run(first)
        some, reference = moe.sampled_reference(first, weights)
        return relative_error(out[some], reference)

    return Prepared(
        calls=[lambda copy=copy: run(copy) for copy in copies],  # type: ignore[misc]
        error=error,
        flops=flops,
        num_bytes=num_bytes,
    )


def _runner(
    kernel: str, experts: Experts, weights: Any, number: str, copies: list[Any]
) -> tuple[Any, Any]:
    """Return a function of tokens that runs the layer, and the tensor it writes to."""
    import torch

    from calibrate.measure.kernels import moe_layer as moe

    most_rows = max(len(copy.rows) for copy in copies)
    if kernel == "torch":
        out = torch.empty(most_rows, experts.hidden, device=copies[0].rows.device)
        return lambda copy: moe.in_torch(copy, weights, out[: len(copy.rows)]), out
    layer = moe.make_layer(experts, weights, number, most_rows, max(copy.routed for copy in copies))
    return layer.launch, layer.buffers["out"]
