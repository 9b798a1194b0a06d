"""Fair queueing over tenants by virtual token counters."""

from collections.abc import Iterator

from sim.engine.step import UNTIL_CHANGE, Plan
from sim.engine.view import EngineView
from sim.engine.waiting import FifoQueue
from sim.errors import ScenarioError
from sim.request import Request


class VirtualTokenCounter:
    """Admit the next request of the tenant that was served least; within it, in order of arrival.

    A tenant's counter grows by ``input_weight`` per prompt token when a request is admitted, and by
    ``output_weight`` per generated token. A tenant that returns is lifted to the lowest counter of
    the waiting tenants, so that no credit is saved up. Tenants are the workload's classes. No
    request starves.

    Counters grow evenly between two plans, so the next tenant is known until a certain decode step,
    which the plan states. The cost of a call grows with the number of tenants, not with the number
    of waiting requests.

    Source: Sheng et al. 2024 (Fairness in Serving Large Language Models, OSDI), algorithm 2.
    """

    def __init__(self, *, input_weight: float = 1.0, output_weight: float = 2.0) -> None:
        if input_weight < 0 or output_weight < 0:
            raise ScenarioError("input_weight and output_weight must not be negative")
        self._input_weight = input_weight
        self._output_weight = output_weight
        # By tenant: its counter without what its `_decoding` sequences have added since they
        # joined, which is output_weight * (decoding * steps - joined).
        self._base: dict[int, float] = {}
        self._decoding: dict[int, int] = {}
        self._joined: dict[int, int] = {}
        self._last: int | None = None  # the tenant of the request admitted last

    def attach(self, view: EngineView) -> None:
        """Keep the waiting requests by tenant, and observe which requests decode."""
        self._group = view.decode_group
        self._group.observers.append(self)
        self._queue = view.waiting = _TenantQueue(self)

    def __call__(self, view: EngineView) -> Plan:
        batch = view.new_batch()
        batch.add_running()
        queue = self._queue
        while len(queue) and not batch.has_preempted:
            request = queue.first()
            if not batch.admit(request):
                break
            self._last = request.tenant
            if not request.num_preemptions and request in view.running:
                tokens = self._input_weight * request.prompt_tokens + self._output_weight
                self._base[request.tenant] += tokens
        return batch.plan(repeat=self._steps_to_change())

    def counter(self, tenant: int) -> float:
        """Return the weighted tokens that a tenant was served so far, with lifts."""
        added = self._decoding[tenant] * self._group.steps - self._joined[tenant]
        return self._base[tenant] + self._output_weight * added

    def arrived(self, tenant: int) -> None:
        """Lift the counter of a tenant that had no waiting request and now has one."""
        self._count(tenant)
        others = self._queue.tenants
        if others:
            least = min(map(self.counter, others))
        else:
            least = 0.0 if self._last is None else self.counter(self._last)
        self._base[tenant] += max(least - self.counter(tenant), 0.0)

    def joined(self, request: Request) -> None:
        """Count a request that starts to decode; it may have been prefilled in another engine."""
        self._count(request.tenant)
        self._decoding[request.tenant] += request.width
        self._joined[request.tenant] += request.width * request.joined_at

    def _count(self, tenant: int) -> None:
        if tenant not in self._base:
            self._base[tenant], self._decoding[tenant], self._joined[tenant] = 0.0, 0, 0

    def left(self, request: Request) -> None:
        """Stop counting a request that no longer decodes; what it generated stays counted."""
        tenant, width = request.tenant, request.width
        self._base[tenant] += self._output_weight * width * (self._group.steps - request.joined_at)
        self._decoding[tenant] -= width
        self._joined[tenant] -= width * request.joined_at

    def _steps_to_change(self) -> int:
        """Return the number of decode steps for which the next tenant stays the same."""
        tenants = self._queue.tenants
        if len(tenants) < 2:
            return UNTIL_CHANGE
        first = self._queue.first().tenant
        counter, decoding = self.counter(first), self._decoding[first]
        steps = UNTIL_CHANGE
        for tenant in tenants:
            gains = self._output_weight * (decoding - self._decoding[tenant])
            if gains > 0:
                steps = min(steps, int((self.counter(tenant) - counter) / gains))
        return max(1, steps)


class _TenantQueue:
    """Waiting requests by tenant, the tenant with the lowest counter first."""

    def __init__(self, policy: VirtualTokenCounter) -> None:
        self._policy = policy
        self.tenants: dict[int, FifoQueue] = {}
        """Waiting requests of each tenant that has any."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Request]:
        for tenant in self._in_order():
            yield from self.tenants[tenant]

    def first(self) -> Request:
        counter = self._policy.counter
        tenant = min(self.tenants, key=lambda tenant: (counter(tenant), tenant))
        return self.tenants[tenant].first()

    def add(self, request: Request) -> None:
        self._of(request).add(request)
        self._length += 1

    def put_back(self, request: Request) -> None:
        """Return a preempted request to the head of its tenant's queue."""
        self._of(request).put_back(request)
        self._length += 1

    def remove(self, request: Request) -> None:
        queue = self.tenants[request.tenant]
        queue.remove(request)
        self._length -= 1
        if not queue:
            del self.tenants[request.tenant]

    def _in_order(self) -> list[int]:
        counter = self._policy.counter
        return sorted(self.tenants, key=lambda tenant: (counter(tenant), tenant))

    def _of(self, request: Request) -> FifoQueue:
        queue = self.tenants.get(request.tenant)
        if queue is None:
            self._policy.arrived(request.tenant)
            queue = self.tenants[request.tenant] = FifoQueue()
        return queue
