"""The engines behind one router: which take requests, what load they have, what a policy sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import simpy

from sim.clock import NS_PER_S
from sim.engine import Engine
from sim.errors import PolicyError
from sim.protocols import ReplicaLoad, Router
from sim.request import Request

_RATE_FOR_NS = 100_000_000  # how long a measured prefill rate is used for


class Group:
    """A `sim.protocols.ServiceView` of its engines. O(1) a request, but for finding who is up."""

    def __init__(
        self, env: simpy.Environment, engines: Sequence[Engine], router: Router, seed: int
    ) -> None:
        self._env = env
        self.engines = engines
        self.seed = seed
        self._router = router
        self.takes = [True] * len(engines)
        """By position: whether requests are sent there."""
        self._loads = [ReplicaLoad(0, 0)] * len(engines)
        self.num_up = len(engines)
        self.num_starting = 0
        self.waiting = self.running = self.queued_tokens = 0
        self.decode: Group | None = None
        """Of engines that only prefill: those that decode for them."""
        self._rate: float | None = None
        self._rate_until_ns = -1
        self.on_load: Callable[[int], None] = lambda position: None
        """Is told whose load has changed."""
        self.ttfts_s: Callable[[float], list[float]] = lambda window_s: []

    @property
    def now_ns(self) -> int:
        """Simulated time."""
        return self._env.now  # type: ignore[return-value]  # an int: it starts at one

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV pools of those up hold."""
        up = (e.view for e, takes in zip(self.engines, self.takes, strict=True) if takes)
        return sum(view.kv.usable_blocks * view.config.block_size for view in up)

    @property
    def kv_use(self) -> float:
        """Share of KV blocks held, mean over those up."""
        up = [e for e, takes in zip(self.engines, self.takes, strict=True) if takes]
        return sum(1 - e.free_blocks / e.view.kv.usable_blocks for e in up) / max(len(up), 1)

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Measured over all steps with prefills of all engines; a little behind."""
        if self.now_ns >= self._rate_until_ns:
            tokens = sum(engine.prefill_tokens for engine in self.engines)
            spent_ns = sum(engine.prefill_ns for engine in self.engines)
            self._rate = tokens / spent_ns * NS_PER_S if spent_ns else None
            self._rate_until_ns = self.now_ns + _RATE_FOR_NS
        return self._rate

    def publish(self, position: int, load: ReplicaLoad) -> None:
        """An engine's load has changed."""
        if self.takes[position]:
            self._add(self._loads[position], -1)
            self._add(load, 1)
        self._loads[position] = load
        self._router.publish(position, load)
        self.on_load(position)

    def choose(self, request: Request) -> int:
        """Position of the engine to send a request to; any, if none takes requests."""
        choice = self._router.choose(request)
        if not 0 <= choice < len(self.engines):
            raise PolicyError(f"the router chose replica {choice} of {len(self.engines)}")
        return choice if self.takes[choice] else self.next_up(choice)

    def next_up(self, position: int) -> int:
        """The next position after this one that takes requests; this one, if none does."""
        n = len(self.engines)
        return next(
            (i % n for i in range(position + 1, position + n) if self.takes[i % n]), position
        )

    def down(self, position: int) -> None:
        """Send no more requests there."""
        if not self.takes[position]:
            return
        self.takes[position] = False
        self.num_up -= 1
        self._add(self._loads[position], -1)
        self._tell("down", position)

    def up(self, position: int) -> None:
        """Requests may be sent there (again)."""
        if self.takes[position]:
            return
        self.takes[position] = True
        self.num_up += 1
        self._add(self._loads[position], 1)
        self._tell("up", position)

    def load(self, position: int) -> int:
        """Requests in an engine."""
        return self._loads[position].waiting + self._loads[position].running

    def _tell(self, what: str, position: int) -> None:
        tell = getattr(self._router, what, None)
        if tell is not None:
            tell(position)

    def _add(self, load: ReplicaLoad, sign: int) -> None:
        self.waiting += sign * load.waiting
        self.running += sign * load.running
        self.queued_tokens += sign * load.queued_tokens
