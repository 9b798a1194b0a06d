"""Money: what a fleet costs, what tokens sell for, when loading state beats computing it."""

from __future__ import annotations

from collections.abc import Mapping

_MILLION = 1e6


def fleet_cost_usd(num_gpus: float, hours: float, usd_per_gpu_hour: float) -> float:
    """Return the rent in USD of ``num_gpus``, a mean over the time."""
    return num_gpus * hours * usd_per_gpu_hour


def revenue_usd(tokens: Mapping[str, float], usd_per_million: Mapping[str, float]) -> float:
    """Return what tokens sell for in USD; both arguments are by class (input, cached input,
    output)."""
    return sum(count / _MILLION * usd_per_million[name] for name, count in tokens.items())


def profit_margin(revenue: float, cost: float) -> float:
    """Return the profit as a share of cost."""
    return (revenue - cost) / cost


def break_even_bytes_per_s(
    state_bytes_per_token: float, flops_per_token: float, flop_per_s: float
) -> float:
    """Return the bandwidth above which loading a token's state beats computing it again."""
    return flop_per_s * state_bytes_per_token / flops_per_token
