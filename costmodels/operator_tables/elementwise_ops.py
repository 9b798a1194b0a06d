"""Which measured elementwise kernels an operator consists of, and those that stand in for others.

A kernel that only moves numbers takes the time of another that moves as many; such an operator is
``extrapolated``.
"""

from __future__ import annotations

from costmodels.operator_tables.families import base_name
from costmodels.work import Operator

_OPS = {
    "norms": "add_rms_norm",
    "activation": "silu_mul",
    "shared_activation": "silu_mul",
    "quantise": "quantise_fp8",
    "quantise_blocks": "quantise_fp8_block",
    "rope": "rotary",
    "global_kv_write": "kv_write",
}
_STAND_INS = {
    "latent_norms": "add_rms_norm",
    "qk_norm": "add_rms_norm",
    "output_gate": "silu_mul",
    "gated_norm": "silu_mul",
    "qkv_activation": "silu_mul",
    "index_rope_and_write": "rotary",
    "rope_and_kv_write": "rotary",
}
_ANY = "residual_add"


def ops_of(operator: Operator) -> tuple[tuple[tuple[str, float], ...], bool]:
    """(op, share of the operator's bytes) of each kernel, and whether they are its very own."""
    if operator.parts:
        total = sum(num_bytes for _, num_bytes in operator.parts)
        return tuple((op, num_bytes / total) for op, num_bytes in operator.parts), True
    name = base_name(operator)
    if name in _OPS:
        return ((_OPS[name], 1.0),), True
    return ((_STAND_INS.get(name, _ANY), 1.0),), False
