"""LoRA adapters in one engine: which may share a batch, and when they are moved to the device.

As in vLLM: the sequences of a step use at most ``max_loras`` different adapters; a request with one
more waits, and others may pass it. Each of them has one of ``max_loras`` slots of device memory,
from host memory or, if that has dropped it too, from disk. Slots and host memory give up the least
recently used adapter first. The kernels of a step wait until its adapters are in place. What the
adapters' own kernels cost is priced by the step cost, from `sim.shape.AdapterSums`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sim.accounts import ADAPTERS
from sim.arrays import Int64
from sim.engine.step import Plan
from sim.engine.view import EngineView
from sim.request import Request, Status
from sim.shape import AdapterSums, StepShape
from sim.step_log import StepLog

BASE_MODEL = -1
"""In the column `COLUMN`: the request uses no adapter."""
COLUMN = "adapter"
"""The column of `sim.request_table.RequestTable.extras` with the adapter of each request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    """Where an engine keeps its adapters, and how long it takes to move one."""

    num_adapters: int
    """Adapters that the engine serves. All are loaded when it starts, in order, so that the last
    are in the slots and in host memory."""
    max_loras: int
    """Slots in device memory: the most adapters in one step."""
    max_cpu_loras: int
    """Adapters that host memory holds, those in slots included."""
    copy_ns: int
    """Time to copy one from host memory into a slot."""
    read_ns: int
    """Time to read one from disk into host memory."""


class Adapters:
    """The adapters of one engine: a feature (`sim.engine.hooks`), and the place of requests that
    wait for a slot."""

    num_running = 0
    wants_blocks = in_transit = False
    holding: Iterable[Request] = ()

    def __init__(self, config: AdapterConfig, adapter: Int64) -> None:
        """``adapter`` is the adapter of each row of the request table, `BASE_MODEL`: none."""
        self._config = config
        self._adapter: list[int] = adapter.tolist()

    def start(self, view: EngineView, wake: Callable[[], None]) -> None:
        """Take part in a new process of the engine, which has just loaded its adapters."""
        self._view = view
        config = self._config
        # Least recently used first.
        self._in_host = dict.fromkeys(_last(config.num_adapters, config.max_cpu_loras))
        self._in_slots = dict.fromkeys(_last(config.num_adapters, config.max_loras))
        self.aside: dict[Request, None] = {}
        """Requests that wait for a slot."""
        self._active: set[int] | None = None
        self._changes = (0, 0)
        hooks = view.hooks
        hooks.places.append(self)
        hooks.take_in.append(self._take_in)
        hooks.stands_aside.append(self._stands_aside)
        hooks.shaped.append(self._with_sums)
        hooks.shape_columns.extend(AdapterSums._fields)
        hooks.must_step.append(self._must_load)
        hooks.wait_ns.append(self._load_ns)

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait for a slot."""
        return len(self.aside)

    def drop(self, request: Request) -> bool:
        """Drop a cancelled request; returns False if it is not here."""
        if request not in self.aside:
            return False
        self._bring_back(request)
        self._view.kv.free_host_blocks += request.swapped_blocks
        request.swapped_blocks = 0
        request.status = Status.ABANDONED
        return True

    def _used_by(self, requests: Iterable[Request]) -> set[int]:
        return {self._adapter[request.index] for request in requests} - {BASE_MODEL}

    def _actives(self) -> set[int]:
        """Return the adapters of the running requests that compute in the step being planned."""
        view = self._view
        changes = len(view.newly_admitted), len(view.newly_preempted)
        if self._active is None or changes != self._changes:
            computing = (r for r in view.running if r.status is not Status.FINISHING)
            self._active, self._changes = self._used_by(computing), changes
        return self._active

    def _may_run(self, request: Request) -> bool:
        adapter, active = self._adapter[request.index], self._actives()
        return adapter == BASE_MODEL or adapter in active or len(active) < self._config.max_loras

    def _stands_aside(self, request: Request) -> bool:
        if self._may_run(request):
            return False
        self._view.waiting.remove(request)
        self.aside[request] = None
        self._view.num_aside += 1
        return True

    def _bring_back(self, request: Request) -> None:
        del self.aside[request]
        self._view.num_aside -= 1

    def _take_in(self, row: int, now_ns: int) -> bool:
        """Return requests whose adapter may run now to the head of the waiting queue."""
        self._active = None
        for request in [r for r in reversed(self.aside) if self._may_run(r)]:
            self._bring_back(request)
            self._view.waiting.put_back(request)
        return False

    def _with_sums(self, shape: StepShape, plan: Plan) -> StepShape:
        """Add the sums over the step's sequences with an adapter."""
        group, adapter = self._view.decode_group, self._adapter
        decoding, prefilling = self._computing(plan)
        with_one = sum(r.width for r in decoding if adapter[r.index] != BASE_MODEL)
        tokens = sum(chunk for r, chunk in plan.prefills if adapter[r.index] != BASE_MODEL)
        of_decodes = self._used_by(decoding)
        of_prefills = self._used_by(prefilling) - of_decodes
        sums = (len(of_decodes), with_one * group.tokens_per_seq, len(of_prefills), tokens)
        return shape._replace(adapters=AdapterSums(*sums))

    def _computing(self, plan: Plan) -> tuple[list[Request], list[Request]]:
        """Return the requests that decode in a step, and those that prefill."""
        left_out = set(plan.held_back)
        members = self._view.decode_group.members if plan.decodes else ()
        return [r for r in members if r not in left_out], [r for r, _ in plan.prefills]

    def _must_load(self) -> bool:
        """Whether a step of all that decodes has to load an adapter first. If not, its adapters are
        marked as used, for a jump does not ask again."""
        active = self._actives()
        if not active.issubset(self._in_slots):
            return True
        self._touch(active)
        return False

    def _load_ns(self, plan: Plan, start_ns: int, gpu_ns: int, log: StepLog) -> int:
        """Bring the step's adapters into their slots; return how long that takes."""
        decoding, prefilling = self._computing(plan)
        used = self._used_by((*decoding, *prefilling))
        missing = sorted(used.difference(self._in_slots))
        wait_ns = 0
        for adapter in missing:
            if adapter not in self._in_host:
                wait_ns += self._config.read_ns
                if len(self._in_host) == self._config.max_cpu_loras:
                    dropped = _oldest(self._in_host, used)
                    del self._in_host[dropped]
                    self._in_slots.pop(dropped, None)
                self._in_host[adapter] = None
            if len(self._in_slots) == self._config.max_loras:
                del self._in_slots[_oldest(self._in_slots, used)]
            self._in_slots[adapter] = None
            wait_ns += self._config.copy_ns
        self._touch(used)
        if missing:
            log.add_wait(ADAPTERS, len(missing), wait_ns)
        return wait_ns

    def _touch(self, used: set[int]) -> None:
        """Mark adapters as used by a step, in an order that depends on nothing else."""
        for adapter in sorted(used):
            for cache in (self._in_host, self._in_slots):
                del cache[adapter]
                cache[adapter] = None


def _last(number: int, most: int) -> range:
    """Return the last ``most`` of ``number`` adapters."""
    return range(max(0, number - most), number)


def _oldest(cache: dict[int, None], used: set[int]) -> int:
    """Return the least recently used adapter that the step does not use."""
    return next(adapter for adapter in cache if adapter not in used)
