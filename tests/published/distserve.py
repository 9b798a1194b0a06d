"""B9: DistServe's first figure: the gain from prefill and decode on GPUs of their own.

OPT-13B in 16 bits, prompts of 512 and answers of 64 tokens, Poisson, A100-80GB. A rate counts if
90% of requests have their first token within 0.4 s, and 90% at most 0.04 s per token after it.
Steps are priced only by the two fits that DistServe's own simulator uses. Prompts and decodes do
not share steps, as in the engines of its day.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from policies.prefill_first import prefill_first
from policies.routers.least_loaded import LeastLoaded
from policies.routers.least_work import LeastWork
from sim.books.metrics import Slo, request_metrics
from sim.engine.config import EngineConfig
from sim.fleet.cluster import RunLog, run_cluster
from sim.fleet.config import Fleet, PoolConfig
from sim.fleet.handover import TransferConfig
from sim.protocols import DecodeRun, StepPrice
from sim.request_table import RequestTable, request_table
from sim.shape import StepShape
from tests.published.rows import Row, Section

COLOCATED_PER_S, PREFILL_PER_S, DECODE_PER_S, GAIN = 1.6, 5.6, 10.0, 2.1
SLO = Slo(ttft_s=0.4, tpot_s=0.04)
_REQUESTS, _STEPS = 2_000, 9
_PROMPT, _OUTPUT = 512, 64
_GAPS = np.random.default_rng(0).exponential(1.0, _REQUESTS)
_KV_BYTES_A_TOKEN = 40 * 2 * 5120 * 2


@dataclass(frozen=True, slots=True)
class DistServeFit:
    """The fits of its profile (LLMServe/DistServe, simdistserve), milliseconds.

    Prefill: 18.10 + 0.1019 sum(T) + 7.12e-6 sum(T^2). Decode of B: 19.93 + 6.27e-4 sum(ctx)
    + 0.0385 B below 95, else 7.17 + 5.80e-4 sum(ctx) + 0.158 B.
    """

    throttle: None = None
    is_free: bool = False
    """What the other phase is measured with."""

    def price(self, shape: StepShape, draw: float | None = None) -> StepPrice:
        """The two phases never share a step here."""
        if self.is_free:
            return StepPrice(1_000)
        if shape.prefill_tokens:
            squares = 2 * shape.prefill_pairs - shape.prefill_tokens
            ms = 18.10 + 0.1019 * shape.prefill_tokens + 7.12e-6 * squares
            return StepPrice(round(ms * 1e6))
        return StepPrice(round(float(self._decode_ms(shape.decode_seqs, shape, 0)) * 1e6))

    def price_decodes(self, shape: StepShape, steps: int) -> DecodeRun:
        """Contexts grow by one a sequence a step."""
        if self.is_free:
            return DecodeRun(self.price(shape), [1_000 * i for i in range(1, steps + 1)], 1_000)
        ms = self._decode_ms(shape.decode_seqs, shape, np.arange(steps))
        ns = np.rint(np.asarray(ms) * 1e6).astype(np.int64)
        return DecodeRun(self.price(shape), np.cumsum(ns).tolist(), int(ns[0]))

    def _decode_ms(self, seqs: int, shape: StepShape, step: object) -> NDArray[np.float64]:
        context = shape.decode_context_tokens + seqs * np.asarray(step)
        if seqs < 95:
            return 19.93 + 6.27e-4 * context + 0.0385 * seqs
        return 7.17 + 5.80e-4 * context + 0.158 * seqs

    def schedule_ns(self, running: int) -> int:
        """Return 0, because the fits include scheduling."""
        return 0

    def update_ns(self, seqs: int) -> int:
        """Return 0, because the fits include updates."""
        return 0

    def split(self, columns: Mapping[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
        """No accounts are asked for."""
        return {}


_ENGINE = EngineConfig(
    step_token_limit=2_048,
    running_seq_limit=256,
    max_model_len=2_048,
    replica_blocks=(72_000_000_000 - 26_000_000_000) // (16 * _KV_BYTES_A_TOKEN),
    enable_prefix_caching=False,
    async_scheduling=False,
)
_POOL = PoolConfig(
    engine=_ENGINE,
    cost=DistServeFit(),
    make_scheduler=lambda: prefill_first,
    make_router=LeastLoaded,
)
_TRANSFER = TransferConfig(  # NVLink inside the node, where it keeps both phases
    bytes_per_token=_KV_BYTES_A_TOKEN,
    layers=40,
    prefill_nic_bytes_per_s=300e9,
    decode_nic_bytes_per_s=300e9,
)


def apart(prefills: int, decodes: int, **free: bool) -> Fleet:
    """Pools of so many GPUs a phase; ``prefill`` or ``decode`` may be free."""
    pools = (
        replace(_POOL, role="prefill", replicas=prefills, make_router=LeastWork),
        replace(_POOL, role="decode", replicas=decodes),
    )
    priced = (replace(p, cost=DistServeFit(is_free=free.get(p.role, False))) for p in pools)
    return Fleet(pools=tuple(priced), transfer=_TRANSFER)


def table_at(rate_per_s: float) -> RequestTable:
    """Return equal arrivals scaled to a rate."""
    lengths = np.full(_REQUESTS, _PROMPT), np.full(_REQUESTS, _OUTPUT)
    return request_table(np.cumsum(_GAPS) / rate_per_s, *lengths)


def meets(log: RunLog, slo: Slo) -> bool:
    """90% of requests meet each target."""
    return all(met.mean() >= 0.9 for met in request_metrics(log, slo).met.values())


def highest_rate(fleet: Fleet | PoolConfig, slo: Slo = SLO) -> float:
    """Requests a second up to which the targets are met, by bisection between 0.1 and 40."""
    low, high = 0.1, 40.0
    for _ in range(_STEPS):
        middle = (low * high) ** 0.5
        if meets(run_cluster(table_at(middle), fleet), slo):
            low = middle
        else:
            high = middle
    return low


def sections() -> list[Section]:
    """Rates of one GPU, and what three apart are worth beside one for all."""
    colocated = highest_rate(_POOL)
    prefill = highest_rate(apart(1, 4, decode=True), replace(SLO, tpot_s=None))
    decode = highest_rate(apart(4, 1, prefill=True), replace(SLO, ttft_s=None))
    three = highest_rate(apart(2, 1))
    found = Section(
        "B9 DistServe, figure 1",
        "OPT-13B, A100-80GB, 512 in / 64 out, P90 TTFT 0.4 s and TPOT 0.04 s; its own two fits",
        [
            Row("colocated", colocated, COLOCATED_PER_S, "req/s"),
            Row("prefill alone", prefill, PREFILL_PER_S, "req/s"),
            Row("decode alone", decode, DECODE_PER_S, "req/s"),
            Row("2 prefill + 1 decode, a GPU", three / 3, DECODE_PER_S / 3, "req/s"),
            Row("gain a GPU over colocated", three / 3 / colocated, GAIN, "x", 0.15),
        ],
        (
            "The fits are of a faster engine than the figure's: a prompt takes 72 ms, so that one "
            "GPU prefills up to 14 a second, not 5.6. From the figure's own three rates the gain "
            "is min(2 x 5.6, 10) / 3 / 1.6 = 2.1.",
        ),
    )
    return [found]
