"""A stand-in for vLLM's engine core: its calls and attributes as the driver uses them, on a clock
of its own that a law of step times moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from costmodels.steps.cost import PoolCost
from sim.shape import StepShape

BLOCK_SIZE = 16
NUM_BLOCKS = 56_057


@dataclass(eq=False)
class FakeRequest:
    """A request as the core's scheduler holds it."""

    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    computed: int = 0
    sampled: int = 0
    num_preemptions: int = 0
    blocks: list[Any] = field(default_factory=list)

    @property
    def req_id(self) -> str:
        """The id, as new requests of a plan carry it."""
        return self.request_id

    @property
    def num_computed_tokens(self) -> int:
        """The computed tokens, as new requests of a plan carry them."""
        return self.computed


class FakeCore:
    """A synchronous engine: chunked prefill, first come first served, blocks without limit."""

    def __init__(self, cost: PoolCost, *, token_budget: int = 8192, max_seqs: int = 1024) -> None:
        self.now_s = 0.0
        self.batch_queue = None
        self._cost = cost
        self._budget, self._max_seqs = token_budget, max_seqs
        self._waiting: list[FakeRequest] = []
        self._running: list[FakeRequest] = []
        chain = SimpleNamespace(next_free_block=None)
        chain.next_free_block = chain
        pool = SimpleNamespace(
            num_gpu_blocks=NUM_BLOCKS,
            get_num_free_blocks=lambda: NUM_BLOCKS - 1,
            enable_caching=True,
            null_block=chain,
            free_block_queue=SimpleNamespace(fake_free_list_head=chain),
            _maybe_evict_cached_block=lambda block: None,
        )
        manager = SimpleNamespace(
            block_size=BLOCK_SIZE, get_num_skipped_tokens=lambda tokens: 0, enable_caching=True
        )
        self.kv_cache_manager = SimpleNamespace(
            block_pool=pool,
            coordinator=SimpleNamespace(single_type_managers=[manager]),
            get_computed_blocks=lambda request: (None, 0),
            create_kv_cache_blocks=lambda groups: groups,
        )
        self.scheduler = SimpleNamespace(
            kv_cache_manager=self.kv_cache_manager,
            schedule=self._schedule,
            update_from_output=self._update,
            has_requests=lambda: bool(self._waiting or self._running),
            get_request_counts=lambda: (len(self._running), len(self._waiting)),
        )

    def clock(self) -> float:
        """Seconds on the core's own clock; to look at it takes a microsecond."""
        self.now_s += 1e-6
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let the core's clock move on."""
        self.now_s += seconds

    def make(self, request_id: str, prompt: list[int], output_tokens: int) -> tuple[FakeRequest]:
        """Prepare a request as `CoreDriver` asks for it."""
        return (FakeRequest(request_id, len(prompt), output_tokens),)

    def add_request(self, request: FakeRequest) -> None:
        """Put a request at the end of the queue."""
        self._waiting.append(request)

    def reset_prefix_cache(self) -> None:
        """Forget nothing: no prefix is cached."""

    def post_step(self, executed: bool) -> None:
        """Do nothing, as without drafts."""

    def step_fn(self) -> tuple[dict[int, Any], bool]:
        """Take one turn: plan, compute by the law, read."""
        if not self.scheduler.has_requests():
            return {}, False
        plan = self.scheduler.schedule(False)
        price = self._cost.price(self._shape(plan))
        launched_s = self.now_s + (price.launch_ns + price.tail_ns) / 1e9
        ended_s = self.now_s + (price.launch_delay_ns + price.gpu_ns) / 1e9
        self.now_s = max(launched_s, ended_s)
        outputs = self.scheduler.update_from_output(plan, None)
        return {0: SimpleNamespace(outputs=outputs)}, True

    def _schedule(self, throttled: bool) -> Any:
        self.now_s += self._cost.schedule_ns(len(self._running)) / 1e9
        left, tokens, old, new = self._budget, {}, [], []
        for request in self._running:
            known = request.num_prompt_tokens + request.sampled
            tokens[request.request_id] = min(known - request.computed, left)
            left -= tokens[request.request_id]
            old.append(request)
        while self._waiting and left and len(self._running) < self._max_seqs:
            request = self._waiting.pop(0)
            _, request.computed = self.kv_cache_manager.get_computed_blocks(request)
            tokens[request.request_id] = min(request.num_prompt_tokens - request.computed, left)
            left -= tokens[request.request_id]
            self._running.append(request)
            new.append(request)
        return SimpleNamespace(
            num_scheduled_tokens=tokens,
            total_num_scheduled_tokens=sum(tokens.values()),
            scheduled_new_reqs=new,
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=[r.request_id for r in old], num_computed_tokens=[r.computed for r in old]
            ),
            preempted_req_ids=None,
            requests=[*old, *new],
        )

    def _update(self, plan: Any, output: Any) -> list[Any]:
        outputs = []
        for request in plan.requests:
            request.computed += plan.num_scheduled_tokens[request.request_id]
            if request.computed < request.num_prompt_tokens + request.sampled:
                continue
            request.sampled += 1
            outputs.append(SimpleNamespace(request_id=request.request_id, new_token_ids=[7]))
            if request.sampled == request.max_tokens:
                self._running.remove(request)
        self.now_s += self._cost.update_ns(len(plan.requests)) / 1e9
        return outputs

    def _shape(self, plan: Any) -> StepShape:
        decodes = decode_context = prefills = prefill = prefill_context = pairs = 0
        for request in plan.requests:
            new, context = plan.num_scheduled_tokens[request.request_id], request.computed
            if context >= request.num_prompt_tokens:
                decodes, decode_context = decodes + 1, decode_context + context
            else:
                prefills, prefill = prefills + 1, prefill + new
                prefill_context += context
                pairs += new * context + new * (new + 1) // 2
        return StepShape(
            decode_seqs=decodes,
            decode_context_tokens=decode_context,
            prefill_seqs=prefills,
            prefill_tokens=prefill,
            prefill_context_tokens=prefill_context,
            prefill_pairs=pairs,
            logits=decodes + prefills,
        )
