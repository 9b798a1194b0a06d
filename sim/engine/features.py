"""Optional parts of an engine that concern only itself: cached content, shared prefixes, swapping.

Each appends to the engine's hooks (`sim.engine.hooks`). Features that move KV between engines are
in `sim.engine.transfers`, those that load it from lower tiers in `sim.engine.loading`.
"""

from __future__ import annotations

from collections.abc import Callable

from sim.accounts import PREEMPTION_SWAP
from sim.engine.config import EngineConfig
from sim.engine.decode_group import DecodeGroup
from sim.engine.step import Plan
from sim.engine.view import EngineView, Feature
from sim.kv.pool import KVCache
from sim.kv.shared_prefix import PrefixTree, common_prefix
from sim.shape import SharedSums, StepShape
from sim.step_log import StepLog


def own_features(config: EngineConfig, kv: KVCache) -> list[Feature]:
    """Return the features that an engine's options and its prefix cache ask for."""
    found: list[Feature] = []
    if kv.lifetime_ns is not None:
        found.append(Expiry())
    if kv.shares_output:
        found.append(SharedOutput())
    if config.shared_prefix_attention == "tree":
        found.append(SharedPrefixes())
    if config.shared_prefix_attention == "cascade":
        found.append(CommonPrefix())
    if config.preemption_mode == "swap":
        found.append(Swapping())
    return found


class Expiry:
    """Evicts cached content past its lifetime before every plan."""

    def start(self, view: EngineView, wake: Callable[[], None]) -> None:
        """Take part in a new process of the engine."""
        self._kv = view.kv
        view.hooks.take_in.append(self._expire)

    def _expire(self, row: int, now_ns: int) -> bool:
        self._kv.expire()
        return False


class SharedOutput:
    """Lets requests hit blocks that others have filled while decoding."""

    def start(self, view: EngineView, wake: Callable[[], None]) -> None:
        """Take part in a new process of the engine."""
        self._view = view
        view.hooks.before_plan.append(self._register)

    def _register(self) -> None:
        view = self._view
        if view.waiting:
            for request in view.decode_group.members:
                view.kv.register(request, view.hashed_tokens(request))


class SharedPrefixes:
    """Gives step shapes the sums of every prefix that decoding sequences share."""

    def start(self, view: EngineView, wake: Callable[[], None]) -> None:
        """Take part in a new process of the engine."""
        self._view = view
        self._tree = PrefixTree(view.config.block_size)
        assert isinstance(view.decode_group, DecodeGroup), "not modeled with speculation"
        view.decode_group.prefix_trees.append(self._tree)
        view.hooks.shaped.append(self._with_sums)
        view.hooks.shape_columns.extend(SharedSums._fields)
        if view.kv.shares_output:
            view.hooks.before_plan.append(self._follow)

    def _follow(self) -> None:
        view = self._view
        if view.waiting:
            for request in view.decode_group.members:
                self._tree.follow(request)

    def _with_sums(self, shape: StepShape, plan: Plan) -> StepShape:
        sums = self._tree.sums(plan.held_back) if shape.decode_seqs else SharedSums()
        return shape._replace(shared=sums)


class CommonPrefix:
    """Gives step shapes the prefix common to all running requests (vLLM's cascade attention)."""

    def start(self, view: EngineView, wake: Callable[[], None]) -> None:
        """Take part in a new process of the engine."""
        self._view = view
        view.hooks.shaped.append(self._with_prefix)
        view.hooks.shape_columns.extend(SharedSums._fields)

    def _with_prefix(self, shape: StepShape, plan: Plan) -> StepShape:
        view = self._view
        holding = sum(1 for place in view.hooks.places for _ in place.holding)
        prefix = common_prefix(view.kv, view.running, view.prefilling, shape.decode_seqs, holding)
        return shape._replace(shared=prefix)


class Swapping:
    """Moves the blocks of swapped requests over the host link before the next step."""

    def start(self, view: EngineView, wake: Callable[[], None]) -> None:
        """Take part in a new process of the engine."""
        self._view = view
        view.hooks.wait_ns.append(self._move_ns)
        view.hooks.must_step.append(lambda: view.blocks_swapped > 0)

    def _move_ns(self, plan: Plan, start_ns: int, gpu_ns: int, log: StepLog) -> int:
        view = self._view
        if not view.blocks_swapped:
            return 0
        swap_ns = round(view.blocks_swapped * view.config.swap_ns_per_block)
        log.add_wait(PREEMPTION_SWAP, view.blocks_swapped, swap_ns)
        view.blocks_swapped = 0
        return swap_ns
