"""Autoscalers that compare a reading with a threshold, and add or remove replicas."""

from __future__ import annotations

import math

from sim.errors import ScenarioError
from sim.protocols import ServiceView


class _Steps:
    """Scale out in proportion to reading over target, at most twofold; scale in one by one.

    This is the rule of Kubernetes: replicas times reading over target, rounded up. Scaling in
    requires that the reading has been low for ``cooldown_s`` and that no replica is starting.
    """

    def __init__(self, view: ServiceView, cooldown_s: float) -> None:
        if cooldown_s < 0:
            raise ScenarioError(f"cooldown_s is {cooldown_s}; it is at least 0")
        self._view = view
        self._cooldown_ns = round(cooldown_s * 1e9)
        self._low_since_ns: int | None = None

    def wanted(self, reading: float, target: float, low: float) -> int:
        """Return the replicas wanted for a reading that should be at most ``target``.

        A reading below ``low`` counts as low.
        """
        view = self._view
        there = view.num_up + view.num_starting
        if reading > target:
            self._low_since_ns = None
            more = math.ceil(view.num_up * min(reading / target, 2.0))
            return max(there, more)
        if reading >= low or view.num_starting:
            self._low_since_ns = None
            return there
        if self._low_since_ns is None:
            self._low_since_ns = view.now_ns
        if view.now_ns - self._low_since_ns < self._cooldown_ns:
            return there
        self._low_since_ns = view.now_ns
        return there - 1


class QueueThreshold:
    """Scale by the number of waiting requests per available replica."""

    def __init__(
        self, view: ServiceView, *, max_waiting: float = 4.0, cooldown_s: float = 300.0
    ) -> None:
        if not max_waiting > 0:
            raise ScenarioError(f"max_waiting is {max_waiting}; it is above 0")
        self._view, self._max_waiting = view, max_waiting
        self._steps = _Steps(view, cooldown_s)

    def wanted(self) -> int:
        reading = self._view.waiting / max(self._view.num_up, 1)
        return self._steps.wanted(reading, self._max_waiting, 0.1 * self._max_waiting)


class KvThreshold:
    """Scale by the share of KV blocks held by requests, averaged over the available replicas."""

    def __init__(
        self,
        view: ServiceView,
        *,
        max_kv_use: float = 0.8,
        min_kv_use: float = 0.3,
        cooldown_s: float = 300.0,
    ) -> None:
        if not 0 <= min_kv_use < max_kv_use <= 1:
            raise ScenarioError("0 <= min_kv_use < max_kv_use <= 1 is needed")
        self._view, self._most, self._least = view, max_kv_use, min_kv_use
        self._steps = _Steps(view, cooldown_s)

    def wanted(self) -> int:
        return self._steps.wanted(self._view.kv_use, self._most, self._least)


class TtftTarget:
    """Scale by a percentile of TTFT over the last ``window_s`` seconds.

    Requests that still wait for their first token count with their age. A TTFT below ``low_share``
    of the target is low: there are more replicas than needed.
    """

    def __init__(
        self,
        view: ServiceView,
        *,
        ttft_s: float,
        percentile: float = 90.0,
        window_s: float = 60.0,
        low_share: float = 0.3,
        cooldown_s: float = 300.0,
    ) -> None:
        if not ttft_s > 0 or not window_s > 0 or not 0 < percentile <= 100:
            raise ScenarioError("ttft_s and window_s must be above 0, percentile in (0, 100]")
        if not 0 <= low_share < 1:
            raise ScenarioError(f"low_share is {low_share}; it is from 0 to below 1")
        self._view, self._ttft_s, self._low_s = view, ttft_s, low_share * ttft_s
        self._percentile, self._window_s = percentile, window_s
        self._steps = _Steps(view, cooldown_s)

    def wanted(self) -> int:
        ttfts_s = sorted(self._view.ttfts_s(self._window_s))
        place = math.ceil(len(ttfts_s) * self._percentile / 100) - 1
        reading = ttfts_s[place] if ttfts_s else 0.0
        return self._steps.wanted(reading, self._ttft_s, self._low_s)
