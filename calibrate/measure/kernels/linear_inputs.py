"""Inputs of linear-attention kernels, and the recurrence that they all compute, in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from calibrate.measure.case import Case, Shape

HEADS = {"kda": (4, 8, 16, 32), "gdn": (8, 16, 32)}
"""Value heads of one rank: the 32 of Kimi Linear and of Qwen3-Next, split by tensor parallelism."""
HEAD_DIM = 128
VALUE_HEADS_A_KEY_HEAD = {"kda": 1, "gdn": 2}
STATE_BYTES = 4
CHUNK = 64
"""Tokens per chunk of a prompt."""


def token_and_state_bytes(kind: str, case: Case) -> tuple[float, float]:
    """Return the bytes of all tokens' inputs and outputs, and of the states of all sequences."""
    seqs, tokens, heads, dk, dv = sizes(case.shape)
    elem = 4 if case.formats["activations"] == "float32" else 2
    key_heads = max(1, heads // VALUE_HEADS_A_KEY_HEAD[kind])
    gates = heads * (dk if kind == "kda" else 1) + heads
    a_token = elem * (2 * key_heads * dk + 2 * heads * dv) + 4 * gates
    return float(seqs * tokens * a_token), float(STATE_BYTES * seqs * heads * dk * dv)


def sizes(shape: Shape) -> tuple[int, int, int, int, int]:
    """Return seqs, tokens, heads, head_k_dim, head_v_dim of a shape."""
    names = ("seqs", "tokens", "heads", "head_k_dim", "head_v_dim")
    seqs, tokens, heads, dk, dv = (int(shape[name]) for name in names)
    return seqs, tokens, heads, dk, dv


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Prompts of equal length, one after another; a row is a token."""

    query: Any
    """Tensor [rows, key heads, head_k_dim]; keys have the same shape and length 1."""
    keys: Any
    values: Any
    """Tensor [rows, heads, head_v_dim]."""
    log_decay: Any
    """float32 tensor, [rows, heads, head_k_dim] in KDA, [rows, heads] in GDN; at most 0."""
    beta: Any
    """float32 tensor [rows, heads], from 0 to 1."""
    seqs: int
    tokens: int

    @property
    def per_channel(self) -> bool:
        return bool(self.log_decay.ndim == 3)

    @property
    def scale(self) -> float:
        return float(self.keys.shape[-1] ** -0.5)


def make_inputs(kind: str, shape: Shape, dtype: Any, device: str, seed: int) -> Inputs:
    """Return random inputs with gates as in trained models, from almost 1 down to e^-5 per
    token."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)

    def normal(*size: int) -> Any:
        return torch.randn(size, device=device, generator=generator)

    seqs, tokens, heads, dk, dv = sizes(shape)
    rows = seqs * tokens
    key_heads = max(1, heads // VALUE_HEADS_A_KEY_HEAD[kind])
    unit = torch.nn.functional.normalize
    decay_size = (rows, heads, dk) if kind == "kda" else (rows, heads)
    return Inputs(
        query=unit(normal(rows, key_heads, dk), dim=-1).to(dtype),
        keys=unit(normal(rows, key_heads, dk), dim=-1).to(dtype),
        values=normal(rows, heads, dv).to(dtype),
        log_decay=-torch.nn.functional.softplus(2 * normal(*decay_size) - 2),
        beta=torch.sigmoid(normal(rows, heads)),
        seqs=seqs,
        tokens=tokens,
    )


def delta_rule(inputs: Inputs, states: Any) -> tuple[Any, Any]:
    """Compute the recurrence token by token: (outputs [rows, heads, head_v_dim], states after), in
    float32.

    ``states`` is the state before: float32 [seqs, heads, head_k_dim, head_v_dim].
    """
    import torch

    rows, heads, dv = inputs.values.shape
    group = heads // inputs.keys.shape[1]

    def by_token(tensor: Any) -> Any:
        return tensor.float().reshape(inputs.seqs, inputs.tokens, *tensor.shape[1:])

    query = by_token(inputs.query).repeat_interleave(group, 2) * inputs.scale
    keys = by_token(inputs.keys).repeat_interleave(group, 2)
    values, beta = by_token(inputs.values), by_token(inputs.beta)
    decay = by_token(inputs.log_decay).exp()
    if not inputs.per_channel:
        decay = decay[..., None]
    states = states.clone()
    out = torch.empty_like(values)
    for token in range(inputs.tokens):
        k = keys[:, token, :, :, None]
        states *= decay[:, token, :, :, None]
        held = (states * k).sum(2)
        correction = beta[:, token, :, None] * (values[:, token] - held)
        states += k * correction[:, :, None, :]
        out[:, token] = (states * query[:, token, :, :, None]).sum(2)
    return out.reshape(rows, heads, dv), states
