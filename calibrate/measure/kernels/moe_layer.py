"""Routed experts of one MoE layer on one rank: weights, kernels, and a reference.

As in vLLM's fused_moe, assignments are sorted by expert into blocks; gate_up gathers their rows;
then come SiLU and product; down writes rows times routing weights, which are summed by token. fp8
has one scale per tensor for activations, known beforehand, and one per expert for weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from calibrate.measure.kernels.moe_routing import Experts

_UNIT = 64
_MOST_EXPERTS = 256
_CHECKED_ROWS = 16
# Scales that fit activations, and the output of SiLU and product, as drawn below, into e4m3.
_ROW_SCALE, _INNER_SCALE = 1 / 32, 1 / 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Weights of the experts: gate_up [experts, 2 inter, hidden], down [experts, hidden, inter],
    scales [experts]."""

    gate_up: Any
    down: Any
    gate_up_scale: Any
    down_scale: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Rows that reach this rank [rows, hidden], with their local experts and weights [rows,
    top_k]."""

    rows: Any
    expert_ids: Any
    routing: Any
    routed: int
    """Number of assignments to this rank's experts."""
    touched: int
    """Number of this rank's experts that have any assignment."""


@lru_cache(maxsize=1)
def make_weights(experts: Experts, number: str, device: str) -> Weights:
    """Return random weights. They are large, and kept until others are requested."""
    import torch

    generator = torch.Generator(device).manual_seed(experts.hidden + experts.inter)
    dtype = torch.bfloat16 if number == "fp8" else getattr(torch, number)

    def make(n: int, k: int) -> tuple[Any, Any]:
        size = (experts.local_experts, n, k)
        values = torch.randn(size, device=device, dtype=dtype, generator=generator)
        scale = torch.full((size[0],), k**-0.5, device=device)
        if number == "fp8":
            return values.to(torch.float8_e4m3fn), scale
        return values.mul_(k**-0.5), torch.ones_like(scale)

    gate_up, gate_up_scale = make(2 * experts.inter, experts.hidden)
    down, down_scale = make(experts.hidden, experts.inter)
    return Weights(gate_up=gate_up, down=down, gate_up_scale=gate_up_scale, down_scale=down_scale)


def make_tokens(experts: Experts, expert_ids: Any, number: str, generator: Any) -> Tokens:
    """Return random rows and routing weights for ``expert_ids``."""
    import torch

    device = expert_ids.device
    dtype = torch.bfloat16 if number == "fp8" else getattr(torch, number)
    size = (len(expert_ids), experts.hidden)
    routing = torch.rand(expert_ids.shape, device=device, generator=generator)
    ours = expert_ids[expert_ids >= 0]
    return Tokens(
        rows=torch.randn(size, device=device, dtype=dtype, generator=generator),
        expert_ids=expert_ids,
        routing=routing / routing.sum(1, keepdim=True),
        routed=ours.numel(),
        touched=ours.unique().numel(),
    )


def block_m(routed: int, local_experts: int) -> int:
    """Return the rows per block, from 16 to 128: about as many as an expert has."""
    rows = -(-routed // local_experts)
    return 16 if rows <= 16 else 64 if rows <= 96 else 128


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights and buffers of a layer; `launch` runs all kernels in order on given tokens."""

    experts: Experts
    weights: Weights
    number: str
    block_m: int
    buffers: dict[str, Any]

    def launch(self, tokens: Tokens) -> None:
        """Run the layer. The results are the first rows of ``self.buffers["out"]``."""
        from calibrate.measure.kernels import moe_triton as kernels

        b, e, is_fp8 = self.buffers, self.experts, self.number == "fp8"
        ids, rows = tokens.expert_ids, tokens.rows
        blocks, size = max_blocks(tokens.routed, e.local_experts, self.block_m), self.block_m
        kernels.plan_blocks[(-(-blocks // 32),)](
            *(ids, b["next_place"], b["block_expert"], b["block_rows"], ids.numel(), blocks),
            *(size, _MOST_EXPERTS, 2048, 32),
            num_warps=8,
        )
        kernels.place_rows[(-(-ids.numel() // 256),)](
            ids, b["next_place"], b["placed"], ids.numel(), 256
        )
        if is_fp8:
            units = rows.numel() // _UNIT
            kernels.quantize[(-(-rows.numel() // 2048),)](
                rows, b["narrow"], b["row_scale"], units, 2048, _UNIT
            )
            rows = b["narrow"]
        self._product(tokens, rows, self.weights.gate_up, b["gate_up"], blocks, is_down=False)
        kernels.silu_mul[(blocks * size, -(-e.inter // 1024))](
            *(b["gate_up"], b["inner"], b["block_rows"], b["inner_scale"], e.inter // _UNIT),
            *(size, 1024, _UNIT, is_fp8),
        )
        self._product(tokens, b["inner"], self.weights.down, b["weighted"], blocks, is_down=True)
        kernels.sum_experts[(len(tokens.rows), -(-e.hidden // 1024))](
            b["weighted"], ids, b["out"], e.top_k, e.hidden // _UNIT, 1024, _UNIT
        )

    def _product(
        self, tokens: Tokens, rows: Any, weights: Any, out: Any, blocks: int, *, is_down: bool
    ) -> None:
        from calibrate.measure.kernels.moe_triton import grouped_matmul

        b, is_fp8 = self.buffers, self.number == "fp8"
        n, k = weights.shape[1:]
        columns, num_warps, num_stages = _TILES[self.block_m]
        inner = 128 if is_fp8 else 64
        if k % inner or n % _UNIT:
            raise ValueError(f"n {n} is no multiple of {_UNIT}, or k {k} none of {inner}")
        grouped_matmul[(blocks * -(-n // columns),)](
            *(rows, weights, out, b["placed"], b["block_expert"], b["block_rows"]),
            *(tokens.routing, b["inner_scale"] if is_down else b["row_scale"]),
            self.weights.down_scale if is_down else self.weights.gate_up_scale,
            *(self.experts.top_k, n // _UNIT, k // inner, blocks),
            *(self.block_m, columns, inner, 8, _UNIT, is_down, is_fp8),
            num_warps=num_warps,
            num_stages=num_stages,
        )


# By rows per block: columns of a tile, warps, stages. With few rows, tiles that keep memory busy.
_TILES = {16: (64, 4, 5), 64: (128, 4, 4), 128: (128, 8, 3)}


def max_blocks(routed: int, local_experts: int, size: int) -> int:
    """Return the most blocks of ``size`` that ``routed`` rows can fill if each expert's rows are
    padded to whole blocks."""
    return (routed + min(routed, local_experts) * (size - 1)) // size


def make_layer(
    experts: Experts, weights: Weights, number: str, most_rows: int, most_routed: int
) -> Layer:
    """Return a layer with buffers for up to ``most_rows`` rows and ``most_routed`` assignments
    to this rank."""
    import torch

    if experts.local_experts > _MOST_EXPERTS:
        raise ValueError(f"at most {_MOST_EXPERTS} experts a rank")
    device = weights.gate_up.device
    dtype = torch.bfloat16 if number == "fp8" else weights.gate_up.dtype
    size = block_m(most_routed, experts.local_experts)
    blocks = max_blocks(most_routed, experts.local_experts, size)

    def empty(*shape: int, of: Any = dtype) -> Any:
        return torch.empty(shape, device=device, dtype=of)

    def integers(count: int) -> Any:
        return empty(count, of=torch.int32)

    buffers = {
        "next_place": integers(_MOST_EXPERTS),
        "block_expert": integers(blocks),
        "block_rows": integers(blocks),
        "placed": integers(blocks * size),
        "gate_up": empty(blocks * size, 2 * experts.inter),
        "inner": empty(blocks * size, experts.inter, of=weights.down.dtype),
        "weighted": empty(most_rows * experts.top_k, experts.hidden),
        "out": empty(most_rows, experts.hidden),
        "row_scale": torch.full((1,), _ROW_SCALE, device=device),
        "inner_scale": torch.full((1,), _INNER_SCALE, device=device),
    }
    if number == "fp8":
        buffers["narrow"] = empty(most_rows, experts.hidden, of=weights.gate_up.dtype)
    return Layer(experts, weights, number, size, buffers)


def in_torch(tokens: Tokens, weights: Weights, out: Any) -> None:
    """Run the layer with torch's own operations, expert by expert, into ``out`` [rows, hidden]."""
    ids = tokens.expert_ids
    out.zero_()
    for expert in ids[ids >= 0].unique().tolist():
        row, choice = (ids == expert).nonzero(as_tuple=True)
        result = _expert(tokens.rows[row], weights, expert)
        out.index_add_(0, row, result * tokens.routing[row, choice, None])


def sampled_reference(tokens: Tokens, weights: Weights) -> tuple[Any, Any]:
    """Compute some rows of the layer's output, token by token: (their indices, float32 [rows,
    hidden])."""
    import torch

    count, device = len(tokens.rows), tokens.rows.device
    some = torch.linspace(0, count - 1, min(count, _CHECKED_ROWS), device=device).long()
    out = torch.zeros((len(some), tokens.rows.shape[1]), device=device)
    chosen = tokens.expert_ids[some].tolist()
    for at, index in enumerate(some.tolist()):
        for choice, expert in enumerate(chosen[at]):
            if expert >= 0:
                result = _expert(tokens.rows[index, None], weights, expert)[0]
                out[at] += tokens.routing[index, choice] * result
    return some, out


def _expert(rows: Any, weights: Weights, expert: int) -> Any:
    import torch

    rows = _as_stored(rows, _ROW_SCALE, weights.gate_up.dtype)
    gate_up = rows @ weights.gate_up[expert].float().t() * weights.gate_up_scale[expert]
    gate, up = gate_up.chunk(2, dim=1)
    inner = _as_stored(torch.nn.functional.silu(gate) * up, _INNER_SCALE, weights.down.dtype)
    return inner @ weights.down[expert].float().t() * weights.down_scale[expert]


def _as_stored(values: Any, scale: float, dtype: Any) -> Any:
    """Return ``values`` in float32, rounded as they are if stored in fp8 with ``scale``."""
    import torch

    if dtype != torch.float8_e4m3fn:
        return values.float()
    return (values.float() / scale).clamp(-448, 448).to(dtype).float() * scale
