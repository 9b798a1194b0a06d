"""The life of engines: crashes, detection, restarts; being started, drained and stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

import numpy as np
import simpy
from numpy.typing import NDArray

from sim.clock import FOREVER_NS, Timers, to_s
from sim.engine.engine import Engine
from sim.errors import PolicyError, ScenarioError
from sim.fleet.gateway import Gateway
from sim.fleet.routing import RoutedEngines
from sim.fleet.service import Fault, ScalingConfig, ServiceConfig, ServiceLog, time_to_crash_ns
from sim.network import Network
from sim.protocols import Autoscaler, DecodeRun, Rises, RoundCost, StepCost, StepPrice
from sim.shape import StepShape
from sim.throttle import PowerThrottle


@dataclass(frozen=True, slots=True)
class SlowCost:
    """A step cost times a factor, on the GPU and on the host: a slow node."""

    cost: StepCost
    factor: float

    @property
    def throttle(self) -> PowerThrottle | None:
        """Power limit of the device."""
        return self.cost.throttle

    def price(self, shape: StepShape, draw: float | None = None, /) -> StepPrice:
        """Price one step of this shape."""
        return self._times(self.cost.price(shape, draw))

    def price_decodes(self, shape: StepShape, steps: int, /) -> DecodeRun:
        """Price a run of decode-only steps, each rounded by itself."""
        return self._slow(self.cost.price_decodes(shape, steps))

    def price_rounds(self, shape: StepShape, rises: Rises, /) -> DecodeRun:
        """Price a run of steps that verify drafts, each rounded by itself."""
        return self._slow(cast(RoundCost, self.cost).price_rounds(shape, rises))

    def _slow(self, run: DecodeRun) -> DecodeRun:
        gpu_ns = np.diff(np.array(run.gpu_cumulative_ns, np.int64), prepend=0)
        slow_ns = np.rint(gpu_ns * self.factor).astype(np.int64)
        return DecodeRun(self._times(run.first), slow_ns.cumsum().tolist(), int(slow_ns.min()))

    def schedule_ns(self, running: int, /) -> int:
        """Return the host time of one scheduler call."""
        return round(self.cost.schedule_ns(running) * self.factor)

    def update_ns(self, seqs: int, /) -> int:
        """Return the host time to process a step's outputs."""
        return round(self.cost.update_ns(seqs) * self.factor)

    def split(
        self, columns: Mapping[str, NDArray[np.float64]], /
    ) -> dict[str, NDArray[np.float64]]:
        """Split the time as on the fast device; the slowdown is the remainder."""
        return self.cost.split(columns)

    def _times(self, price: StepPrice) -> StepPrice:
        return StepPrice(*(round(part * self.factor) for part in price))


_MOST_IDLE_LOOKS = 10_000

_State = Literal["stopped", "starting", "serving", "crashed", "draining"]


@dataclass(eq=False, slots=True)
class Replica:
    """The machine of one engine."""

    engine: Engine
    group: RoutedEngines
    position: int
    """Position of the engine in its group."""
    cost: StepCost
    restart: Callable[[], None]
    """Starts the engine's process anew."""
    start_ns: int
    """Time from the start of the process until it serves: weights are loaded."""
    provision_ns: int
    """Time from asking for a machine until it is there."""
    state: _State = "serving"
    lives: int = 0
    """Number of processes it has had; timers of earlier ones are void."""


class Operations:
    """Carries out faults and scaling, until the last request is over."""

    def __init__(
        self,
        env: simpy.Environment,
        config: ServiceConfig,
        log: ServiceLog,
        replicas: list[Replica],
        network: Network,
        gateway: Gateway,
    ) -> None:
        self._env = env
        self._config = config
        self._log = log
        self._replicas = replicas
        self._network = network
        self._gateway = gateway
        self._timers = Timers(env)
        self._slow: dict[Replica, list[float]] = {}
        self._thin: dict[str, list[float]] = {}
        self._full_bytes_per_s: dict[str, float] = {}
        self._bills: dict[Replica, list[int]] = {}
        self._progress: tuple[int, int] | None = None
        self._idle_looks = 0

    def start(self) -> None:
        """Schedule faults and scaling, before anything has arrived."""
        if self._config.scaling is not None:
            self._begin_scaling(self._config.scaling)
        for replica in self._replicas:
            if replica.state == "serving":
                self._bill(replica)
                self._expect_crash(replica)
        for fault in self._config.faults.schedule:
            self._timers.after(fault.at_ns, self._strike(fault))

    def stop(self) -> None:
        """Stop all timers, because the last request is over."""
        self._timers.stop()

    @property
    def _now_ns(self) -> int:
        return self._env.now  # type: ignore[return-value]  # an int: it starts at one

    # Faults.

    def _strike(self, fault: Fault) -> Callable[[], None]:
        """Return what a fault does at its time; raises ScenarioError if its place is not there."""
        if fault.replica is not None and fault.replica >= len(self._replicas):
            raise ScenarioError(
                f"a {fault.kind} is of replica {fault.replica}; there are {len(self._replicas)}, "
                "from 0"
            )
        if fault.kind in ("link_cut", "link_slow"):
            share = 0.0 if fault.kind == "link_cut" else fault.factor
            return partial(self._thin_out, self._links(fault), share, fault.duration_ns)
        assert fault.replica is not None, "only links have names"
        replica = self._replicas[fault.replica]
        if fault.kind == "slow_node":
            return partial(self._slow_down, replica, fault.factor, fault.duration_ns)
        return partial(self._crash, replica, loses_gpu=fault.kind == "gpu_lost")

    def _links(self, fault: Fault) -> list[str]:
        """Return the names of the links that a fault concerns, at least one."""
        names = [fault.link] if fault.link else [f"out {fault.replica}", f"in {fault.replica}"]
        found = [name for name in names if name in self._network.moved_bytes]
        if not found:
            of = f"link {fault.link!r}" if fault.link else f"replica {fault.replica}"
            known = ", ".join(self._network.moved_bytes) or "none: KV moves over no network here"
            raise ScenarioError(f"a {fault.kind} of {of}: there is no such link; known: {known}")
        return found

    def _slow_down(self, replica: Replica, factor: float, duration_ns: int) -> None:
        """Slow a node for a time."""
        self._slow.setdefault(replica, []).append(factor)
        self._set_cost(replica)

        def over() -> None:
            self._slow[replica].remove(factor)
            self._set_cost(replica)

        self._timers.after(duration_ns, over)

    def _thin_out(self, links: list[str], share: float, duration_ns: int) -> None:
        """Leave links a share of their bandwidth for a time."""
        for name in links:
            self._thin.setdefault(name, []).append(share)
            self._set_bandwidth(name)

        def over() -> None:
            for name in links:
                self._thin[name].remove(share)
                self._set_bandwidth(name)

        self._timers.after(duration_ns, over)

    def _set_cost(self, replica: Replica) -> None:
        """Set the step cost by the strongest slowdown that is active on a node."""
        factors = self._slow[replica]
        cost = SlowCost(replica.cost, max(factors)) if factors else replica.cost
        replica.engine.set_cost(cost)

    def _set_bandwidth(self, name: str) -> None:
        full = self._full_bytes_per_s.setdefault(name, self._network.bandwidth(name))
        self._network.add_link(name, full * min(self._thin[name], default=1.0))

    def _expect_crash(self, replica: Replica) -> None:
        faults = self._config.faults
        if faults.mtbf_ns >= FOREVER_NS:
            return
        index, life = replica.engine.replica, replica.lives
        when_ns = time_to_crash_ns(faults, self._config.seed, index, life)
        self._timers.after(when_ns, partial(self._crash_if, replica, life))

    def _crash_if(self, replica: Replica, life: int) -> None:
        if replica.lives == life:
            self._crash(replica)

    def _crash(self, replica: Replica, *, loses_gpu: bool = False) -> None:
        """Lose what runs there at once; that the replica is down becomes known later."""
        if not replica.engine.is_up:
            return  # it is down already, or not there
        was_draining = replica.state == "draining"
        replica.state = "crashed"
        replica.lives += 1
        outage = [replica.engine.replica, self._now_ns, -1, -1]
        self._log.outages.append(outage)
        self._gateway.crash(replica.engine)
        if was_draining:
            self._stop(replica)
            return

        life = replica.lives

        def detected() -> None:
            outage[2] = self._now_ns
            replica.group.down(replica.position)
            wait_ns = replica.start_ns + (replica.provision_ns if loses_gpu else 0)
            self._timers.after(wait_ns, ready)

        def ready() -> None:
            if replica.lives == life:
                outage[3] = self._now_ns
                self._serve(replica)

        self._timers.after(self._config.faults.detection_ns, detected)

    def _serve(self, replica: Replica) -> None:
        """Take requests again, because the process is ready."""
        replica.state = "serving"
        replica.restart()
        replica.group.up(replica.position)
        self._expect_crash(replica)

    # Scaling.

    def _begin_scaling(self, scaling: ScalingConfig) -> None:
        """Take out replicas that are not there at first, and schedule the first decision."""
        groups = dict.fromkeys(replica.group for replica in self._replicas)
        group = list(groups)[-1 if scaling.of_decode_engines else 0]
        scaled = [replica for replica in self._replicas if replica.group is group]
        group.ttfts_s = self._gateway.watch_first_tokens()
        for replica in scaled[scaling.first(len(scaled)) :]:
            replica.state = "stopped"
            replica.engine.crash()
            group.down(replica.position)
        group.on_load = partial(self._note_load, scaled)
        decide = partial(self._scale, scaling, scaling.make(group), scaled)
        self._timers.after(scaling.interval_ns, decide)

    def _scale(self, scaling: ScalingConfig, scaler: Autoscaler, scaled: list[Replica]) -> None:
        """Make one decision of the autoscaler, and schedule the next."""
        self._check_progress()
        for replica in scaled:
            self._stop_if_drained(replica)
        there = [r for r in scaled if r.state in ("serving", "starting", "crashed")]
        wanted = min(max(scaler.wanted(), scaling.min_replicas), len(scaled))
        for replica in [r for r in scaled if r.state == "stopped"][: max(wanted - len(there), 0)]:
            self._launch(replica)
        serving = [r for r in scaled if r.state == "serving"]
        spare = min(len(there) - wanted, len(serving) - 1)
        by_load = sorted(serving, key=lambda r: (r.group.load(r.position), -r.position))
        for replica in by_load[: max(spare, 0)]:
            replica.state = "draining"
            replica.group.down(replica.position)
            self._note_load(scaled, replica.position)
        decide = partial(self._scale, scaling, scaler, scaled)
        self._timers.after(scaling.interval_ns, decide)

    def _check_progress(self) -> None:
        """Stop scaling when nothing can happen any more: its checks alone would keep the run
        going."""
        progress = (self._gateway.progress, sum(len(r.engine.steps) for r in self._replicas))
        self._idle_looks = self._idle_looks + 1 if progress == self._progress else 0
        self._progress = progress
        if self._idle_looks > _MOST_IDLE_LOOKS and self._gateway.num_live:
            raise PolicyError(
                f"at {to_s(self._now_ns):.6f} s {self._gateway.num_live} requests are in engines, "
                f"and nothing has moved for {_MOST_IDLE_LOOKS:,} looks of the autoscaler; the run "
                "would never end"
            )

    def _launch(self, replica: Replica) -> None:
        replica.state = "starting"
        replica.lives += 1
        replica.group.num_starting += 1
        self._bill(replica)
        life = replica.lives

        def ready() -> None:
            replica.group.num_starting -= 1
            if replica.lives == life:
                self._serve(replica)

        self._timers.after(replica.provision_ns + replica.start_ns, ready)

    def _note_load(self, scaled: list[Replica], position: int) -> None:
        """Check at the end of this instant whether a draining replica is empty."""
        replica = scaled[position]
        if replica.state == "draining" and not replica.group.load(position):
            self._timers.after(0, partial(self._stop_if_drained, replica))

    def _stop_if_drained(self, replica: Replica) -> None:
        if replica.state == "draining" and replica.engine.is_empty:
            replica.lives += 1
            replica.engine.crash()
            self._stop(replica)

    def _stop(self, replica: Replica) -> None:
        replica.state = "stopped"
        replica.group.down(replica.position)
        self._bills.pop(replica)[2] = self._now_ns

    def _bill(self, replica: Replica) -> None:
        """Start to bill a replica."""
        life = [replica.engine.replica, self._now_ns, -1]
        self._log.lives.append(life)
        self._bills[replica] = life
