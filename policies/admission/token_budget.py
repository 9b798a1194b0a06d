"""Admission by predicted work: prompt tokens, answer tokens and KV cache in flight."""

from sim.errors import ScenarioError
from sim.protocols import ServiceView
from sim.request import Request


class TokenBudget:
    """Admit requests while the predicted need of those in the system stays within every budget.

    A request counts in full from its admission until it leaves: with its prompt, its answer, and
    both for the KV cache. Budgets of tokens are per available replica. ``max_kv_share`` is a share
    of the KV pools; a value above 1 relies on answers that end early. ``predicted_output_tokens``
    is assumed for every answer; None: its true length, an oracle.
    """

    def __init__(
        self,
        view: ServiceView,
        *,
        max_prefill_tokens: int | None = None,
        max_decode_tokens: int | None = None,
        max_kv_share: float | None = 1.0,
        predicted_output_tokens: int | None = None,
    ) -> None:
        for name, value in (
            ("max_prefill_tokens", max_prefill_tokens),
            ("max_decode_tokens", max_decode_tokens),
            ("max_kv_share", max_kv_share),
            ("predicted_output_tokens", predicted_output_tokens),
        ):
            if value is not None and not value > 0:
                raise ScenarioError(f"{name} is {value}; it is above 0, or null")
        self._view = view
        self._max_prefill = max_prefill_tokens
        self._max_decode = max_decode_tokens
        self._max_kv_share = max_kv_share
        self._predicted = predicted_output_tokens
        self._prefill = self._decode = 0

    def admit(self, request: Request) -> str | None:
        prefill = self._prefill + request.prompt_tokens
        decode = self._decode + self._output_tokens(request)
        replicas = self._view.num_up
        if self._max_prefill is not None and prefill > self._max_prefill * replicas:
            return "over the prefill budget"
        if self._max_decode is not None and decode > self._max_decode * replicas:
            return "over the decode budget"
        share = self._max_kv_share
        if share is not None and prefill + decode > share * self._view.kv_tokens:
            return "over the KV cache budget"
        self._prefill, self._decode = prefill, decode
        return None

    def left(self, request: Request) -> None:
        self._prefill -= request.prompt_tokens
        self._decode -= self._output_tokens(request)

    def _output_tokens(self, request: Request) -> int:
        return request.output_tokens if self._predicted is None else self._predicted
