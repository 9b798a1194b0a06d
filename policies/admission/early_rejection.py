"""Admission by predicted TTFT."""

from sim.errors import ScenarioError
from sim.protocols import ServiceView
from sim.request import Request


class EarlyRejection:
    """Turn a request away if its first token is predicted to come after ``ttft_s``.

    The prediction divides the prompt tokens ahead of the request, and its own, by the rate at which
    the engines have computed prompts so far; before the first measurement all are admitted. It
    assumes that the queue is spread evenly and that prompts are computed in full, though cached
    prefixes are faster.

    Source: Qin et al. 2025 (Mooncake, FAST), sections 6.1 and 7.2: queue plus prefill estimate
    against the SLO, before any of the work is done.
    """

    def __init__(self, view: ServiceView, *, ttft_s: float) -> None:
        if not ttft_s > 0:
            raise ScenarioError(f"ttft_s is {ttft_s}; it is above 0")
        self._view = view
        self._ttft_s = ttft_s

    def admit(self, request: Request) -> str | None:
        view = self._view
        rate, replicas = view.prefill_tokens_per_s, view.num_up
        if rate is None or not replicas:
            return None
        ahead = view.queued_tokens / replicas
        in_time = ahead + request.prompt_tokens <= rate * self._ttft_s
        return None if in_time else "its first token would come too late"

    def left(self, request: Request) -> None:
        pass
