"""Routings of an MoE layer, that is, which expert computes which token, as seen by one rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from calibrate.measure.case import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Routed experts of a layer; ``inter`` is the part of each that one rank has."""

    hidden: int
    inter: int
    top_k: int
    num_experts: int
    ep: int

    @property
    def local_experts(self) -> int:
        return self.num_experts // self.ep

    def expected_rows(self, tokens: int) -> float:
        """Return the expected assignments to this rank's experts if all ranks together route
        ``tokens``."""
        return max(1.0, tokens * self.top_k / self.ep)


def experts_of(shape: Shape) -> Experts:
    """Build the experts from the fields of a `grouped_gemm` shape, whose ``inter`` is the whole
    model's."""
    return Experts(
        hidden=int(shape["hidden"]),
        inter=int(shape["inter"]) // int(shape["tp"]),
        top_k=int(shape["top_k"]),
        num_experts=int(shape["num_experts"]),
        ep=int(shape["ep"]),
    )


def route(experts: Experts, tokens: int, routing: str, device: str, generator: Any) -> Any:
    """Return the local experts of the tokens that reach this rank: [rows, top_k] int32, -1 for
    others'.

    ``tokens`` are those of all ep ranks. "balanced" deals experts like cards, so that each gets
    equally many tokens, in random combinations. "zipf" lets a token draw its experts without
    replacement, the n-th most popular in proportion to 1 / n. Experts are dealt to ranks in order
    of popularity, and this rank is the one whose number of assignments is nearest to the mean (and
    not zero).
    """
    if routing == "balanced":
        chosen = _dealt(experts, tokens, device, generator)
    elif routing == "zipf":
        chosen = _drawn(experts, tokens, device, generator)
    else:
        raise ValueError(f"no such routing: {routing}")
    loads = (chosen % experts.ep).flatten().bincount(minlength=experts.ep).tolist()
    mean = tokens * experts.top_k / experts.ep
    rank = min((r for r in range(experts.ep) if loads[r]), key=lambda r: abs(loads[r] - mean))
    local = (chosen // experts.ep).masked_fill(chosen % experts.ep != rank, -1)
    return local[(local >= 0).any(1)].int().contiguous()


def _dealt(experts: Experts, tokens: int, device: str, generator: Any) -> Any:
    import torch

    decks = -(-tokens * experts.top_k // experts.num_experts)
    noise = torch.rand((decks, experts.num_experts), device=device, generator=generator)
    return noise.argsort(1).flatten()[: tokens * experts.top_k].reshape(tokens, experts.top_k)


def _drawn(experts: Experts, tokens: int, device: str, generator: Any) -> Any:
    import torch

    rank = torch.arange(1, experts.num_experts + 1, device=device)
    uniform = torch.rand((tokens, experts.num_experts), device=device, generator=generator)
    # The largest values of log(share) + Gumbel noise are a draw without replacement.
    gumbel = -(-uniform.clamp_min(1e-20).log()).clamp_min(1e-20).log()
    return (gumbel - rank.log()).topk(experts.top_k, 1).indices
