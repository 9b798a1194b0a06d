"""Measure the small operators between matrix products: norms, rotary positions, activations,
conversions.

``width`` is the number of output elements per row: for ``silu_mul`` half of those read, for
``rotary`` all queries and keys, for ``kv_write`` a token's keys and values together. On a GPU,
kernel ``triton`` is ours and ``inductor`` is compiled by torch; on a processor, the kernel is
``torch``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from calibrate.measure.case import Case, Prepared, num_copies, relative_error
from calibrate.measure.machine import l2_bytes

TOLERANCE = {"float32": 1e-5, "bfloat16": 5e-3, "float16": 1e-3}

_ROWS = (
    *(1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 224, 256, 320, 384, 512, 768, 1024),
    *(1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384),
)
# Hidden sizes, FFN sizes and head counts of the models in `gemm_shapes`, by rank.
_WIDTHS = {
    "add_rms_norm": (2048, 2880, 4096, 5120, 7168, 8192),
    "residual_add": (2048, 4096, 8192),
    "silu_mul": (768, 1792, 3584, 7168, 14336, 28672),
    "rotary": (640, 1280, 2560, 5120, 9216),
    "kv_write": (256, 512, 1024, 2048),
    "quantise_fp8": (2048, 4096, 8192, 14336),
    "quantise_fp8_block": (2048, 7168, 16384),
}
_QUICK_WIDTHS = {
    "silu_mul": (14336,),
    "rotary": (5120,),
    "kv_write": (2048,),
    "quantise_fp8_block": (7168,),
}
_ON_GPU = ("triton", "inductor")
_COMPILED = ("add_rms_norm", "residual_add", "silu_mul", "rotary")
"""Operators that vLLM has torch compile. It writes to the cache and quantizes with kernels of
its own."""
_HEAD_DIM = 128
_GROUP = 128
_POSITIONS = 8192

_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}


def cases(quick: bool, device: str) -> Iterator[Case]:
    """Yield all operators, with a few widths each."""
    kernels, number = (("torch",), "float32") if device == "cpu" else (_ON_GPU, "bfloat16")
    kernels = kernels[:1] if quick else kernels  # compiling takes minutes
    rows = (1, 16, 256) if device == "cpu" else _ROWS[::5] if quick else _ROWS
    for kernel in kernels:
        for op, widths in _WIDTHS.items():
            if kernel == "inductor" and op not in _COMPILED:
                continue
            if quick or device == "cpu":
                widths = _QUICK_WIDTHS.get(op, (4096,))
            for width in widths:
                for count in rows:
                    yield Case(
                        family="elementwise",
                        kernel=kernel,
                        formats={"activations": number},
                        shape={"op": op, "rows": count, "width": width},
                    )


def work(case: Case) -> tuple[float, float]:
    """Return FLOPs (a few per element), and bytes of input and output rows."""
    rows, width = int(case.shape["rows"]), int(case.shape["width"])
    size = _SIZES[case.formats["activations"]]
    bytes_per_element = {
        "add_rms_norm": 4 * size,
        "residual_add": 3 * size,
        "silu_mul": 3 * size,
        "rotary": 2 * size,
        "kv_write": 2 * size,
        "quantise_fp8": size + 1,
        "quantise_fp8_block": size + 1,
    }[str(case.shape["op"])]
    return 4.0 * rows * width, float(rows * width * bytes_per_element)


@dataclass(frozen=True, slots=True)
class Job:
    """One call of an operator: its arguments, its output, and a float32 reference."""

    arguments: tuple[Any, ...]
    result: Callable[[], Any]
    reference: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Source:
    """Creates the tensors of a case."""

    device: str
    dtype: Any
    draw: Any

    def random(self, *shape: int) -> Any:
        """Return normally distributed numbers."""
        import torch

        return torch.randn(shape, device=self.device, dtype=self.dtype, generator=self.draw)

    def empty(self, *shape: int, dtype: Any = None) -> Any:
        """Return an uninitialized tensor for a result."""
        import torch

        return torch.empty(shape, device=self.device, dtype=dtype or self.dtype)

    def indices(self, count: int, below: int) -> Any:
        """Return ``count`` distinct numbers in random order."""
        import torch

        return torch.randperm(below, device=self.device, generator=self.draw)[:count]


def prepare(case: Case, device: str, seed: int) -> Prepared:
    """Prepare random inputs in more copies than a cache holds."""
    import torch

    functions = import_module(f"{__package__}.elementwise_{case.kernel}")
    op = str(case.shape["op"])
    function, make = getattr(functions, op), _MAKERS[op]
    dtype = getattr(torch, case.formats["activations"])
    source = Source(device, dtype, torch.Generator(device).manual_seed(seed))
    flops, num_bytes = work(case)
    rows, width = int(case.shape["rows"]), int(case.shape["width"])
    jobs = [make(source, rows, width) for _ in range(num_copies(num_bytes, l2_bytes(device)))]

    def bound(job: Job) -> Callable[[], object]:
        return lambda: function(*job.arguments)

    calls: Sequence[Callable[[], object]] = [bound(job) for job in jobs]

    def error() -> float:
        parts = calls[0]()
        result = torch.cat(parts, 1) if isinstance(parts, tuple) else jobs[0].result()
        return relative_error(result, jobs[0].reference())

    return Prepared(calls=list(calls), error=error, flops=flops, num_bytes=num_bytes)


def _add_rms_norm(source: Source, rows: int, width: int) -> Job:
    import torch

    x, residual = source.random(rows, width), source.random(rows, width)
    weight = source.random(width)
    total, out = source.empty(rows, width), source.empty(rows, width)

    def reference() -> Any:
        summed = x.float() + residual.float()
        normed = summed * torch.rsqrt(summed.square().mean(1, keepdim=True) + 1e-6)
        return torch.cat((summed, normed * weight.float()))

    return Job((x, residual, weight, total, out), lambda: torch.cat((total, out)), reference)


def _residual_add(source: Source, rows: int, width: int) -> Job:
    x, residual = source.random(rows, width), source.random(rows, width)
    out = source.empty(rows, width)
    return Job((x, residual, out), lambda: out, lambda: x.float() + residual.float())


def _silu_mul(source: Source, rows: int, width: int) -> Job:
    x, out = source.random(rows, 2 * width), source.empty(rows, width)

    def reference() -> Any:
        gate, up = x[:, :width].float(), x[:, width:].float()
        return gate * gate.sigmoid() * up

    return Job((x, out), lambda: out, reference)


def _rotary(source: Source, rows: int, width: int) -> Job:
    import torch

    x, out = source.random(rows, width), source.empty(rows, width)
    half = _HEAD_DIM // 2
    angles = torch.outer(
        torch.arange(_POSITIONS, device=source.device, dtype=torch.float32),
        1e4 ** (-torch.arange(half, device=source.device, dtype=torch.float32) / half),
    )
    cos, sin = angles.cos().to(source.dtype), angles.sin().to(source.dtype)
    positions = source.indices(rows, max(rows, _POSITIONS)) % _POSITIONS

    def reference() -> Any:
        pairs = x.float().view(rows, -1, 2, half).transpose(2, 3).contiguous()
        factors = torch.complex(cos.float(), sin.float())[positions][:, None, :]
        turned = torch.view_as_real(torch.view_as_complex(pairs) * factors)
        return turned.transpose(2, 3).reshape(rows, width)

    return Job((x, positions, cos, sin, out), lambda: out, reference)


def _quantise_fp8(source: Source, rows: int, width: int, group: int | None = None) -> Job:
    import torch

    x, out = source.random(rows, width), source.empty(rows, width, dtype=torch.float8_e4m3fn)
    scales = source.empty(rows, width // (group or width), dtype=torch.float32)

    def result() -> Any:
        return out.float().view(scales.numel(), -1) * scales.view(-1, 1)

    def reference() -> Any:
        """Return the nearest fp8 numbers at the scale set by the largest value."""
        values = x.float().view(scales.numel(), -1)
        exact = values.abs().amax(1, keepdim=True) / 448
        return (values / exact).to(torch.float8_e4m3fn).float() * exact

    return Job((x, out, scales), result, reference)


def _quantise_fp8_block(source: Source, rows: int, width: int) -> Job:
    return _quantise_fp8(source, rows, width, _GROUP)


def _kv_write(source: Source, rows: int, width: int) -> Job:
    import torch

    x, half = source.random(rows, width), width // 2
    slots = source.indices(rows, 2 * rows)
    keys, values = source.empty(2 * rows, half), source.empty(2 * rows, half)

    def result() -> Any:
        return torch.cat((keys[slots], values[slots]), 1)

    return Job((x, slots, keys, values), result, x.float)


_MAKERS: dict[str, Callable[[Source, int, int], Job]] = {
    "add_rms_norm": _add_rms_norm,
    "residual_add": _residual_add,
    "silu_mul": _silu_mul,
    "rotary": _rotary,
    "quantise_fp8": _quantise_fp8,
    "quantise_fp8_block": _quantise_fp8_block,
    "kv_write": _kv_write,
}
