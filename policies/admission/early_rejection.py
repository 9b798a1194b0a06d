"""Admission by predicted TTFT: who would wait too long is turned away at once."""

from sim.errors import ScenarioError
from sim.protocols import ServiceView
from sim.request import Request


class EarlyRejection:
    """Turns a request away if its first token is predicted to come after ``ttft_s``.

    The prediction is the prompt tokens ahead of it and its own, over the rate at which the engines
    compute prompts, as measured so far (before that all are let in). It takes the queue to be
    spread evenly, and prompts to be computed in full: cached prefixes come faster.

    Source: Qin et al. 2025 (Mooncake, FAST), sections 6.1 and 7.2: queue plus prefill estimate
    against the SLO, before any of the work is done.
    """

    def __init__(self, view: ServiceView, *, ttft_s: float) -> None:
        if not ttft_s > 0:
            raise ScenarioError(f"ttft_s is {ttft_s}; it is above 0")
        self._view = view
        self._ttft_s = ttft_s

    def admit(self, request: Request) -> str | None:
        """Let it in if it is predicted to be in time."""
        view = self._view
        rate, replicas = view.prefill_tokens_per_s, view.num_up
        if rate is None or not replicas:
            return None
        ahead = view.queued_tokens / replicas
        in_time = ahead + request.prompt_tokens <= rate * self._ttft_s
        return None if in_time else "its first token would come too late"

    def left(self, request: Request) -> None:
        """The queue knows by itself."""
