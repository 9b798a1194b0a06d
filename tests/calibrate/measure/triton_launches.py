"""Collect the Triton kernels that a function launches, with their arguments, compiled but not
run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.calibrate.measure.triton_compile import H200_SHARED_BYTES, Compiled, compile_for_h200

_TYPES = {
    "float32": "*fp32",
    "bfloat16": "*bf16",
    "float8_e4m3fn": "*fp8e4nv",
    "int16": "*i16",
    "int32": "*i32",
}


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel and what `compile_for_h200` takes."""

    kernel: Any
    arguments: Mapping[str, Any]
    num_warps: int
    num_stages: int

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)

    def compiled(self) -> Compiled:
        return compile_for_h200(
            self.kernel, self.arguments, num_warps=self.num_warps, num_stages=self.num_stages
        )


def launches_of(function: Callable[[], object]) -> list[Launch]:
    """Each different launch that ``function`` makes, in order; its tensors may be on the CPU."""
    from triton.runtime.jit import JITFunction

    seen: dict[str, Launch] = {}

    def record(kernel: Any, *positional: Any, grid: Any, warmup: bool, **options: Any) -> None:
        num_warps, num_stages = options.pop("num_warps", 4), options.pop("num_stages", 3)
        values = dict(zip(kernel.arg_names, positional, strict=False)) | options
        arguments = {
            parameter.name: values[parameter.name]
            if parameter.is_constexpr
            else _type(values[parameter.name])
            for parameter in kernel.params
        }
        launch = Launch(kernel, arguments, num_warps, num_stages)
        seen.setdefault(repr((launch.name, arguments, num_warps, num_stages)), launch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITFunction, "run", record)
        function()
    return list(seen.values())


def fits(compiled: Compiled) -> bool:
    """Whether a program fits a multiprocessor of an H200 without spilling registers."""
    return compiled.spill_bytes == 0 and compiled.shared_bytes <= H200_SHARED_BYTES


def _type(value: Any) -> str:
    if isinstance(value, int | float):
        return "i32" if isinstance(value, int) else "fp32"
    return _TYPES[str(value.dtype).removeprefix("torch.")]
