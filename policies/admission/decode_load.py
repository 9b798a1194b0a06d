"""Admission by predicted decode load."""

from sim.errors import ScenarioError
from sim.protocols import ServiceView
from sim.request import Request


class DecodeLoad:
    """Turn a request away if the decode engines are predicted to be full when its prompt is done.

    The prediction is made for that time: all requests that are in prefill engines now have moved on
    to decode, and of the requests that decode now a share has finished, namely the time until then
    over ``decode_s``, the duration of an answer. So no prompt is computed for an answer that would
    have to wait, and admission does not oscillate as it does if only the present load counts.
    ``max_requests`` is the capacity of one decode engine.

    Source: Qin et al. 2025 (Mooncake, FAST; arXiv 2407.00079), section 7.3: early rejection based
    on prediction, with one decoding time for all.
    """

    def __init__(self, view: ServiceView, *, max_requests: int, decode_s: float) -> None:
        if max_requests < 1:
            raise ScenarioError(f"max_requests is {max_requests}; it is at least 1")
        if not decode_s > 0:
            raise ScenarioError(f"decode_s is {decode_s}; it is above 0")
        if view.decode is None:
            raise ScenarioError(
                "it looks at decode engines, and no pool has the role decode; give pools with "
                "role: prefill and role: decode, or another admission policy"
            )
        self._view, self._decode = view, view.decode
        self._max_requests, self._decode_s = max_requests, decode_s

    def admit(self, request: Request) -> str | None:
        view, decode = self._view, self._decode
        rate = view.prefill_tokens_per_s
        if rate is None or not view.num_up or not decode.num_up:
            return None
        ahead_s = (view.queued_tokens / view.num_up + request.prompt_tokens) / rate
        still = max(0.0, 1 - ahead_s / self._decode_s)
        coming = view.waiting + view.running
        predicted = (decode.waiting + decode.running) * still + coming + 1
        fits = predicted <= self._max_requests * decode.num_up
        return None if fits else "the decode engines would be full"

    def left(self, request: Request) -> None:
        pass
