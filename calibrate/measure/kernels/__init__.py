"""Kernels that can be measured, by operator family.

A module has ``cases(quick, device)``, which yields its grid with the smallest shapes first,
``prepare(case, device, seed)``, which returns a `Prepared`, and ``TOLERANCE``, the largest relative
error by number format. It may have ``work(case)``, the FLOPs and bytes of a call, from which the
time of a case is predicted. Families that need several processes have ``measure`` instead of
``prepare`` (see `collectives`).
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

FAMILIES: dict[str, tuple[str, ...]] = {
    "gemm": ("gemm", "w4a16"),
    "grouped_gemm": ("grouped_gemm",),
    "prefill_attention": ("attention_prefill",),
    "decode_attention": ("attention_decode",),
    "mla_decode": ("mla_decode",),
    "kda_chunk": ("linear_chunk",),
    "kda_recurrent": ("linear_recurrent",),
    "gdn_chunk": ("linear_chunk",),
    "gdn_recurrent": ("linear_recurrent",),
    "elementwise": ("elementwise",),
    "embedding": ("embedding",),
    "sampling": ("sampling",),
    "copy": ("copies",),
    "launch": ("launches",),
    "all_reduce": ("collectives",),
    "all_gather": ("collectives",),
    "reduce_scatter": ("collectives",),
    "all_to_all": ("collectives",),
    "send_recv": ("collectives",),
}


def modules_of(family: str) -> list[ModuleType]:
    """Return the modules that measure a family of `FAMILIES`."""
    return [import_module(f"{__name__}.{name}") for name in FAMILIES[family]]
