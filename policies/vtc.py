"""Fair queueing over tenants: the virtual token counter."""

from collections.abc import Iterator

from sim.engine.batch import UNTIL_CHANGE, Plan
from sim.engine.view import EngineView
from sim.engine.waiting import FifoQueue
from sim.errors import ScenarioError
from sim.request import Request


class VirtualTokenCounter:
    """The tenant served least so far is next; within a tenant, first come, first served.

    A tenant's counter grows by ``input_weight`` a prompt token when a request is admitted, and by
    ``output_weight`` a token it generates. One that comes back is lifted to the least counter of
    those that wait, so nobody saves up. Tenants are the workload's classes. Nobody starves.

    Counters grow evenly between two plans, so who is next is known up to a decode step, which the
    plan states. The cost of a call grows with the tenants, not with the requests that wait.

    Source: Sheng et al. 2024 (Fairness in Serving Large Language Models, OSDI), algorithm 2.
    """

    def __init__(self, *, input_weight: float = 1.0, output_weight: float = 2.0) -> None:
        if input_weight < 0 or output_weight < 0:
            raise ScenarioError("input_weight and output_weight must not be negative")
        self._input_weight = input_weight
        self._output_weight = output_weight
        # Of each tenant: the counter, less what its decoding sequences, so many of them, have
        # added to it since they joined: output_weight * (decoding * steps - joined).
        self._base: dict[int, float] = {}
        self._decoding: dict[int, int] = {}
        self._joined: dict[int, int] = {}
        self._last: int | None = None  # tenant whose request left the queue last

    def attach(self, view: EngineView) -> None:
        """Keep the waiting requests by tenant, and follow who decodes."""
        self._group = view.decode_group
        self._group.observer = self
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
        """Weighted tokens served so far, with lifts."""
        added = self._decoding[tenant] * self._group.steps - self._joined[tenant]
        return self._base[tenant] + self._output_weight * added

    def arrived(self, tenant: int) -> None:
        """A tenant of whom nobody waited has a request: lift its counter."""
        self._count(tenant)
        others = self._queue.tenants
        if others:
            least = min(map(self.counter, others))
        else:
            least = 0.0 if self._last is None else self.counter(self._last)
        self._base[tenant] += max(least - self.counter(tenant), 0.0)

    def joined(self, request: Request) -> None:
        """A request decodes from now on; maybe one that was prefilled elsewhere."""
        self._count(request.tenant)
        self._decoding[request.tenant] += request.width
        self._joined[request.tenant] += request.width * request.joined_at

    def _count(self, tenant: int) -> None:
        if tenant not in self._base:
            self._base[tenant], self._decoding[tenant], self._joined[tenant] = 0.0, 0, 0

    def left(self, request: Request) -> None:
        """It does so no longer: what it generated stays counted."""
        tenant, width = request.tenant, request.width
        self._base[tenant] += self._output_weight * width * (self._group.steps - request.joined_at)
        self._decoding[tenant] -= width
        self._joined[tenant] -= width * request.joined_at

    def _steps_to_change(self) -> int:
        """Decode steps for which the tenant that is next stays so."""
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
    """Waiting requests by tenant; the first is that of the tenant with the lowest counter."""

    def __init__(self, policy: VirtualTokenCounter) -> None:
        self._policy = policy
        self.tenants: dict[int, FifoQueue] = {}
        """Of each tenant that has any."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Request]:
        for tenant in self._in_order():
            yield from self.tenants[tenant]

    def first(self) -> Request:
        """The oldest request of the tenant served least."""
        counter = self._policy.counter
        tenant = min(self.tenants, key=lambda tenant: (counter(tenant), tenant))
        return self.tenants[tenant].first()

    def add(self, request: Request) -> None:
        """Append an arrival to its tenant's."""
        self._of(request).add(request)
        self._length += 1

    def put_back(self, request: Request) -> None:
        """Return a preempted request to the head of its tenant's."""
        self._of(request).put_back(request)
        self._length += 1

    def remove(self, request: Request) -> None:
        """Take a request out."""
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
