"""Admission by predicted decode load: whose answer no decode engine could take is turned away."""

from sim.errors import ScenarioError
from sim.protocols import ServiceView
from sim.request import Request


class DecodeLoad:
    """Turns a request away if the decode engines are predicted to be full when its prompt is done.

    By then, all requests that prefill engines have now will have come, and of those that decode
    now a share will have gone: the time their prefill takes over ``decode_s``, how long an answer
    takes. So prompts are not computed for answers that would have to wait, and admission does not
    swing as it does where only the present load is looked at.

    Source: Qin et al. 2025 (Mooncake, FAST; arXiv 2407.00079), section 7.3: early rejection based
    on prediction, with one decoding time for all.
    """

    def __init__(self, view: ServiceView, *, max_requests: int, decode_s: float) -> None:
        """``max_requests``: of a decode engine."""
        if max_requests < 1:
            raise ScenarioError(f"max_requests is {max_requests}; it is at least 1")
        if not decode_s > 0:
            raise ScenarioError(f"decode_s is {decode_s}; it is above 0")
        if view.decode is None:
            raise ScenarioError("it looks at decode engines, and no pool has the role decode")
        self._view, self._decode = view, view.decode
        self._max_requests, self._decode_s = max_requests, decode_s

    def admit(self, request: Request) -> str | None:
        """Let it in if the decode engines will have room for it."""
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
        """The loads say so by themselves."""
