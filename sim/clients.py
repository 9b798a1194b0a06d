"""Clients that do not wait for ever: time-outs, and retries with back-off and a budget."""

from __future__ import annotations

from dataclasses import dataclass

from sim.draws import uniform
from sim.errors import ScenarioError

_DRAW = -(1 << 33)  # of a request: not one that anything else uses


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """How clients behave. Times count from the sending of an attempt."""

    ttft_timeout_ns: int | None = None
    """A client gives up when it has no first token by then; None: it waits."""
    e2e_timeout_ns: int | None = None
    """... when it does not have the whole answer by then."""
    max_retries: int = 0
    """Attempts after the first."""
    backoff_ns: int = 1_000_000_000
    """Wait before the first retry, doubled for each further one; half of it is drawn."""
    max_backoff_ns: int = 60_000_000_000
    retry_budget: float | None = None
    """Retries as a share of first attempts, over all clients (Site Reliability Engineering, ch. 21:
    a tenth); None: without limit."""
    budget_burst: int = 10
    """Retries that may be made before any budget was earned, and the most that is saved up."""
    server_notices: bool = True
    """Whether the engine learns that a client has gone, and drops its request; if not, it serves
    it to its end."""

    def __post_init__(self) -> None:
        for name in ("ttft_timeout_ns", "e2e_timeout_ns"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ScenarioError(f"{name} is {value}; it is at least 1, or None")
        if (
            self.ttft_timeout_ns is not None
            and self.e2e_timeout_ns is not None
            and self.e2e_timeout_ns < self.ttft_timeout_ns
        ):
            raise ScenarioError("the time-out of the whole answer is not before its first token's")
        if self.max_retries < 0 or self.backoff_ns < 0 or self.max_backoff_ns < self.backoff_ns:
            raise ScenarioError(
                "max_retries and backoff_ns must be at least 0, max_backoff_ns more"
            )
        if self.retry_budget is not None and self.retry_budget < 0:
            raise ScenarioError(f"retry_budget is {self.retry_budget}; it is at least 0, or None")


class RetryBudget:
    """Every first attempt earns a share of a retry, every retry takes one."""

    def __init__(self, config: ClientConfig, seed: int) -> None:
        self._config = config
        self._seed = seed
        self._saved = float(config.budget_burst)
        self.denied = 0
        """Retries that were not made for want of budget."""

    def first_attempt(self) -> None:
        """Someone sends a request for the first time."""
        share = self._config.retry_budget
        if share is not None:
            self._saved = min(self._saved + share, float(self._config.budget_burst))

    def delay_ns(self, request: int, attempt: int) -> int | None:
        """How long after its attempt (1, 2, ...) failed a request is sent again; None: never."""
        config = self._config
        if attempt > config.max_retries:
            return None
        if config.retry_budget is not None:
            if self._saved < 1:
                self.denied += 1
                return None
            self._saved -= 1
        longest = min(config.backoff_ns << min(attempt - 1, 40), config.max_backoff_ns)
        return longest - int(uniform(self._seed, request, _DRAW + attempt) * (longest // 2))
