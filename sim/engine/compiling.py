"""Kernels that an engine compiles in the step that needs them first: a feature of one engine.

Sizes of steps fall into buckets, and a bucket has a kernel of its own. The host compiles it before
it launches the first step of that bucket; nothing is planned or read meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sim.accounts import LAUNCH_AND_HOST
from sim.engine.step import Plan
from sim.engine.view import EngineView
from sim.step_log import StepLog


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileConfig:
    """What is compiled, and whether it outlives a process."""

    graph_tokens: int
    """The largest step in a CUDA graph; up to it everything is compiled before the engine
    serves."""
    bucket_tokens: int
    """Step sizes that share a kernel."""
    compile_ns: int
    """Time to compile one kernel."""
    is_kept: bool
    """Whether a restarted process finds what those before it compiled."""


class Compiling:
    """The buckets of step sizes that have a kernel."""

    def __init__(self, config: CompileConfig, *, met: Iterable[int] = ()) -> None:
        """``met`` are step sizes, in tokens, whose kernels are there at first."""
        self._config = config
        self._met = {self._bucket(tokens) for tokens in met}

    def start(self, view: EngineView, wake: Callable[[], None]) -> None:
        """Take part in a new process of the engine."""
        self._view = view
        if not self._config.is_kept:
            self._met.clear()
        view.hooks.must_step.append(self._decodes_lack_kernel)
        view.hooks.host_ns.append(self._compile_ns)

    def _bucket(self, tokens: int) -> int:
        return -(-tokens // self._config.bucket_tokens)

    def _lacks_kernel(self, tokens: int) -> bool:
        return tokens > self._config.graph_tokens and self._bucket(tokens) not in self._met

    def _decodes_lack_kernel(self) -> bool:
        """Whether a step of all that decodes has to compile first."""
        group = self._view.decode_group
        return self._lacks_kernel(group.num_seqs * group.tokens_per_seq)

    def _compile_ns(self, plan: Plan, log: StepLog) -> int:
        tokens = plan.shape.num_tokens
        if not self._lacks_kernel(tokens):
            return 0
        self._met.add(self._bucket(tokens))
        # It is the host's time already; the log counts the stalls.
        log.add_wait(LAUNCH_AND_HOST, 1, self._config.compile_ns)
        return self._config.compile_ns
