"""Admission at a bounded rate, by a token bucket."""

from typing import Literal

from sim.errors import ScenarioError
from sim.protocols import ServiceView
from sim.request import Request


class RateLimit:
    """Admit ``rate_per_s`` requests, or tokens, on average and ``burst`` at once.

    ``unit`` says what is counted: requests, or their prompt and answer tokens (API providers count
    ``max_tokens``; here it is the answer's length). With ``per_tenant`` each class has a bucket of
    its own. ``burst`` is the bucket's size; None: what one second refills, at least one request.
    """

    def __init__(
        self,
        view: ServiceView,
        *,
        rate_per_s: float,
        burst: float | None = None,
        unit: Literal["requests", "tokens"] = "requests",
        per_tenant: bool = False,
    ) -> None:
        if not rate_per_s > 0 or (burst is not None and not burst > 0):
            raise ScenarioError("rate_per_s and burst must be above 0")
        if unit not in ("requests", "tokens"):
            raise ScenarioError(f"unit is {unit!r}; it must be requests or tokens")
        self._view = view
        self._rate_per_ns = rate_per_s / 1e9
        self._size = max(rate_per_s, 1.0) if burst is None else burst
        self._counts_tokens = unit == "tokens"
        self._per_tenant = per_tenant
        self._levels: dict[int, tuple[int, float]] = {}

    def admit(self, request: Request) -> str | None:
        tenant = request.tenant if self._per_tenant else 0
        now_ns = self._view.now_ns
        since_ns, level = self._levels.get(tenant, (now_ns, self._size))
        level = min(level + (now_ns - since_ns) * self._rate_per_ns, self._size)
        need = request.prompt_tokens + request.output_tokens if self._counts_tokens else 1
        fits = need <= level
        self._levels[tenant] = (now_ns, level - need if fits else level)
        return None if fits else "over the rate limit"

    def left(self, request: Request) -> None:
        pass
