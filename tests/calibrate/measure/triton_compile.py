"""Compile a Triton kernel for an H200 without a GPU, and report the resources it uses.

Triton compiles for a given target down to machine code without a driver. This finds errors that its
interpreter accepts: types that do not agree, operands too small for the tensor cores, shared memory
that does not fit, registers that spill.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

H200_SHARED_BYTES = 232_448
"""Shared memory that one program may take (compute capability 9.0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What one program of a compiled kernel takes."""

    registers: int
    """A thread."""
    spill_bytes: int
    shared_bytes: int
    ptx: str
    ttgir: str
    cubin: bytes

    @property
    def tensor_core_instructions(self) -> set[str]:
        """Among "wgmma" (a warp group's) and "mma" (a warp's)."""
        return {name for name in ("wgmma", "mma") if re.search(rf"\b{name}\.", self.ptx)}


def compile_for_h200(
    kernel: Any, arguments: Mapping[str, Any], *, num_warps: int = 4, num_stages: int = 3
) -> Compiled:
    """Compiles ``kernel`` (a ``triton.jit`` function) for compute capability 9.0.

    ``arguments``: by name, the type of each run-time argument ("*bf16", "*fp8e4nv", "*i32", "i32",
    "fp32"; pointers are taken as aligned to 16 bytes where the kernel asks) and the value of each
    ``constexpr``. Raises what Triton or ptxas raises.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, constants, attributes = {}, {}, {}
    for parameter in kernel.params:
        value = arguments[parameter.name]
        if parameter.is_constexpr:
            signature[parameter.name] = "constexpr"
            constants[parameter.name,] = value
            continue
        signature[parameter.name] = value
        if value.startswith("*") and not parameter.do_not_specialize_on_alignment:
            attributes[parameter.num,] = [["tt.divisibility", 16]]
    by_place = {(kernel.arg_names.index(name),): value for (name,), value in constants.items()}
    compiled = triton.compile(
        ASTSource(kernel, signature, by_place, attributes),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": num_warps, "num_stages": num_stages},
    )
    ptx = compiled.asm["ptx"]
    registers, spill_bytes = _assemble(ptx)
    return Compiled(
        registers=registers,
        spill_bytes=spill_bytes,
        shared_bytes=compiled.metadata.shared,
        ptx=ptx,
        ttgir=compiled.asm["ttgir"],
        cubin=compiled.asm["cubin"],
    )


def _assemble(ptx: str) -> tuple[int, int]:
    """Registers a thread and bytes spilled, from the assembler's own account."""
    from triton import knobs

    command = [knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", "-o", "/dev/null", "-"]
    log = subprocess.run(command, input=ptx, text=True, capture_output=True, check=True).stderr
    registers = int(re.findall(r"Used (\d+) registers", log)[-1])
    return registers, sum(int(size) for size in re.findall(r"(\d+) bytes spill", log))


def disassemble(cubin: bytes, path: Path) -> str:
    """The machine code of ``cubin`` as text; ``path``: a file to put it in meanwhile."""
    from triton import knobs

    path.write_bytes(cubin)
    command = [knobs.nvidia.cuobjdump.path, "-sass", str(path)]
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout
