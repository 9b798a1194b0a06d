"""The state of one engine: its requests by what they do, its KV pool, its decode group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.clock import to_s
from sim.engine.config import EngineConfig
from sim.engine.decode_group import DecodeGroup
from sim.engine.hooks import Hooks
from sim.engine.speculative_group import SpeculativeGroup
from sim.engine.waiting import WaitingQueue
from sim.kv.pool import KVCache
from sim.request import Request, Status

if TYPE_CHECKING:
    from sim.engine.api_server import ApiServer


class EngineState:
    """Waiting and running requests and the KV pool of one engine.

    ``running`` and ``prefilling`` are ordered by admission. The batch builder changes the state
    through `move_to_running` and `move_to_waiting`, the engine through `start_decoding` and
    `remove_running`.
    """

    def __init__(self, config: EngineConfig, kv: KVCache, waiting: WaitingQueue) -> None:
        self.config = config
        self.kv = kv
        self.waiting = waiting
        self.running: dict[Request, None] = {}
        self.prefilling: dict[Request, None] = {}
        self.decode_group = _decode_group(config)
        self.hooks = Hooks()
        """What the engine's optional features do, by moment."""
        self.api_server: ApiServer | None = None
        """What stands between clients and the engine, if anything does."""
        self.aligns_chunks = config.aligns_chunks
        self.num_aside = 0
        """Requests that a feature holds outside the queue, and that wait like those in it."""
        self.decodes_here = True
        """False in an engine that only prefills: requests are decoded elsewhere."""
        self.now_ns = 0
        self.num_unforked = 0
        """Answers of running requests that begin when the prompt is computed; they count against
        ``running_seq_limit``."""
        self.num_beams = 0
        """Hypotheses of running requests beyond the first of each; they count against
        ``running_seq_limit``."""
        self.newly_admitted: list[Request] = []
        self.newly_preempted: list[Request] = []
        self.blocks_swapped = 0
        """Blocks to move over the host link before the next step, in and out."""

    @property
    def now_s(self) -> float:
        """Simulated time of this scheduler call, in seconds."""
        return to_s(self.now_ns)

    @property
    def num_running(self) -> int:
        """Number of running sequences: each request counts once per hypothesis."""
        return len(self.running) + self.num_beams

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait, in the queue or set aside."""
        return len(self.waiting) + self.num_aside

    def move_to_running(self, request: Request) -> None:
        """Move a request from waiting to running; called by `BatchBuilder.admit`."""
        self.waiting.remove(request)
        self.running[request] = None
        self.newly_admitted.append(request)
        if request.swapped_blocks:
            self.blocks_swapped += self.kv.swap_in(request)
            if not request.num_uncomputed_tokens:
                request.status = Status.DECODING
                self.decode_group.join(request)
                return
        self.num_unforked += request.num_unforked
        self.num_beams += request.width - 1
        self.prefilling[request] = None
        request.status = Status.PREFILLING

    def remove_running(self, request: Request) -> None:
        """Remove a running request: it finished, was preempted or was cancelled."""
        del self.running[request]
        self.num_beams -= request.width - 1

    def start_decoding(self, request: Request) -> None:
        """Add a request whose prompt was computed elsewhere; it decodes from the next step on."""
        self.running[request] = None
        request.status = Status.DECODING
        self.decode_group.join(request)

    def move_to_waiting(self, request: Request, *, extra_blocks: int) -> None:
        """Return a running request to the queue; ``extra_blocks`` were taken for it in this step.
        Called by `BatchBuilder.preempt`."""
        finishing = request.status is Status.FINISHING
        if request.status is Status.DECODING:
            self.decode_group.remove(request)
            held = self.kv.blocks_held(request, request.num_computed_tokens)
            request.num_blocks = held + extra_blocks
        if self.prefilling.pop(request, self) is None:
            self.num_unforked -= request.num_unforked
        self.remove_running(request)
        swapped = not finishing and self._swap_out(request)
        hashed_tokens = self.hashed_tokens(request)
        self.kv.release(request, hashed_tokens, will_return=not finishing and not swapped)
        request.num_preemptions += 1
        self.newly_preempted.append(request)
        if finishing:
            return  # its last token is in flight: the request ends when that is read
        if swapped:
            if request.status is Status.DECODING:
                request.num_target_tokens = request.num_computed_tokens
            request.status = Status.WAITING
            self.waiting.put_back(request)
            return
        request.status = Status.WAITING
        request.num_target_tokens = request.prompt_tokens + request.num_sampled_tokens
        request.num_computed_tokens = 0
        self.waiting.put_back(request)

    def _swap_out(self, request: Request) -> bool:
        """Move a victim's blocks to the host, if that is the preemption mode and there is room.

        Blocks shared by several sequences are not moved, because they would have to return
        together.
        """
        if self.config.preemption_mode != "swap" or request.is_several:
            return False
        if not self.kv.swap_out(request, request.num_computed_tokens):
            return False
        self.blocks_swapped += request.swapped_blocks
        return True

    def hashed_tokens(self, request: Request) -> int:
        """Return the computed tokens of a running request whose content is known, and so has a
        hash.

        With async scheduling the newest token is computed from one that has not been read yet.
        """
        computed, sampled = request.num_computed_tokens, request.num_sampled_tokens
        if request.status is Status.DECODING and request in self.decode_group.members:
            computed = self.decode_group.computed_tokens(request)
            sampled = self.decode_group.sampled_tokens(request)
            unread = self.decode_group.last_gain(request)
        else:
            unread = request.last_gain
        if request.status is Status.PREFILLING or not self.config.async_scheduling:
            return computed
        known = request.prompt_tokens + sampled - unread - 1
        return min(computed, max(request.num_target_tokens, known))


def _decode_group(config: EngineConfig) -> DecodeGroup | SpeculativeGroup:
    if config.speculation is not None:
        return SpeculativeGroup(
            config.block_size,
            config.speculation,
            clip_tokens=config.clip_tokens,
            layout=config.kv_layout,
            max_model_len=config.max_model_len,
            unread_steps=config.unread_steps,
        )
    return DecodeGroup(
        config.block_size,
        config.clip_tokens,
        config.kv_layout,
    )
