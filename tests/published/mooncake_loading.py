"""B14: when Mooncake loads a prefix instead of computing it, and the hits that its trace allows.

The rule of its section 5.1: with l layers of width d, grouped-query attention of factor gqa and KV
of s bytes per element, p tokens take l (a p^2 d + b p d^2) operations to compute and 2 l p d s /
gqa bytes to load; at G FLOP/s loading is faster from B = G 2 d s / (gqa (a p d + b d^2)) bytes/s
on.
"""

from __future__ import annotations

import numpy as np
import simpy

from sim.kv.pool import KVCache
from sim.kv.tier_store import TierConfig
from sim.kv.tiers import Tiers, TiersConfig, shared_tiers
from sim.request import Request
from sim.request_table import PrefixChains
from tests.properties.checkout import SHARED
from tests.published.rows import Row, Section
from workloads.readers.detect import read_trace
from workloads.reuse import hit_curve

_LAYERS, _D, _GQA, _ELEMENT_BYTES, _A, _B = 80, 8192, 8, 2, 4, 22
_TOKENS, _BLOCK = 8192, 512
FLOP_PER_S = {"8 x A800": 8 * 312e12, "8 x H800": 8 * 989e12}
PUBLISHED_GB_PER_S = {"8 x A800": 6.0, "8 x H800": 19.0}
TRACE_HIT = 0.40
_TRACE = SHARED / "data" / "traces" / "mooncake_conversation.jsonl.gz"


def least_bytes_per_s(flop_per_s: float) -> float:
    """The bandwidth from which on the simulator's load-or-compute decision is to load."""
    low, high = 1e6, 1e15
    while high / low > 1 + 1e-6:
        middle = (low * high) ** 0.5
        if _loads(middle, flop_per_s):
            high = middle
        else:
            low = middle
    return high


def _loads(bytes_per_s: float, flop_per_s: float) -> bool:
    blocks = _TOKENS // _BLOCK
    tier = TierConfig(
        name="remote",
        capacity_blocks=None,
        block_bytes=_BLOCK * _LAYERS * 2 * _D * _ELEMENT_BYTES // _GQA,
        read_bytes_per_s=bytes_per_s,
    )
    config = TiersConfig(tiers=(tier,))
    chains = PrefixChains(
        ids=np.arange(blocks + 1),
        offsets=np.array([0, blocks + 1]),
        tokens=np.array([_TOKENS + _BLOCK]),
        block_tokens=_BLOCK,
    )
    kv = KVCache(100, _BLOCK, chains=chains)
    tiers = Tiers(simpy.Environment(initial_time=0), config, kv.index, shared_tiers(config))
    for prefix_id in range(blocks):
        tiers.ways[0].store.put((prefix_id, 0, 1))

    def prefill_ns(request: Request, computed_tokens: int) -> int:
        """Return the time of the prefix alone, because what follows it is computed in any case."""
        tokens = _TOKENS - computed_tokens
        return round(_LAYERS * (_A * tokens**2 * _D + _B * tokens * _D**2) / flop_per_s * 1e9)

    tiers.prefill_ns = prefill_ns
    request = Request(0, 0, _TOKENS + 1, 1, num_target_tokens=_TOKENS + 1)
    hit = kv.lookup(request)
    found = tiers.find(request, hit, kv.hit_limit(request))
    return tiers.worthwhile(request, hit, found, _BLOCK) > 0


def bandwidth_rows() -> list[Row]:
    """Published to the whole GB/s."""
    return [
        Row(
            f"least bandwidth, {name}",
            least_bytes_per_s(flop_per_s) / 1e9,
            published,
            "GB/s",
            0.5 / published,
        )
        for (name, flop_per_s), published in zip(
            FLOP_PER_S.items(), PUBLISHED_GB_PER_S.values(), strict=True
        )
    ]


def trace_rows() -> list[Row]:
    """What an endless cache hits of the conversation trace; the paper's figure is approximate."""
    if not _TRACE.exists():
        return []
    table = read_trace(_TRACE)
    assert table.chains is not None
    curve = hit_curve(table.chains, table.prompt_tokens)
    share = curve.possible_tokens / curve.prompt_tokens
    return [Row("hits of an endless cache", share, TRACE_HIT, "", 0.03 / TRACE_HIT)]


def sections() -> list[Section]:
    """Return the section for `tests.published`."""
    return [
        Section(
            "B14  Mooncake: load or compute (FAST'25, 2407.00079)",
            f"Llama-3-70B, {_TOKENS:,} cached tokens in 16 bits, a = {_A}, b = {_B}, peak FLOP/s",
            [*bandwidth_rows(), *trace_rows()],
            notes=(
                "the bandwidth is where the simulator's own decision (kv.tiers.load cheaper) "
                "turns, with prefills priced by the paper's formula",
            ),
        )
    ]
