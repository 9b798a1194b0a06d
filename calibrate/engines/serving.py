"""Serve Poisson arrivals with an engine core, and record each request's times."""

from __future__ import annotations

import gc
import math
import random
from dataclasses import dataclass
from typing import Any

from calibrate.engines.driver import CoreDriver

_PROMPT, _OUTPUT = (1000, 0.8, 16, 8000), (200, 0.7, 4, 1500)
"""Mean, sigma of the logarithm, least and most tokens."""
_PREFILL_PART_TOKENS, _DECODE_BATCH = 8192, 128


@dataclass(slots=True)
class Served:
    """One request of a serving run; times are in seconds from the run's start."""

    arrival: float
    prompt: int
    planned_out: int
    added: float = -1.0
    first: float = -1.0
    finish: float = -1.0
    out: int = 0
    cached: int = 0
    preempt: int = 0

    def as_row(self, run: str) -> dict[str, Any]:
        """Return the request as a line of a recording's requests."""
        return {
            "run": run,
            "arrival": round(self.arrival, 6),
            "added": round(self.added, 6),
            "prompt": self.prompt,
            "planned_out": self.planned_out,
            "out": self.out,
            "cached": self.cached,
            "group": "",
            "preempt": self.preempt,
            "first": round(self.first, 6),
            "finish": round(self.finish, 6),
        }


def saturation_per_s(points: list[dict[str, Any]]) -> float | None:
    """Return the requests/s at which a full engine would serve the workload, by measured steps.

    None without a long prefill and a large decode step.
    """
    prefill_ms = _largest(points, "prefill", "P")
    decode_ms = _largest(points, "decode", "B")
    if prefill_ms is None or decode_ms is None:
        return None
    (tokens, whole_ms), (batch, step_ms) = prefill_ms, decode_ms
    prompt_ms = whole_ms * _PROMPT[0] / tokens
    return 1e3 / (prompt_ms + _OUTPUT[0] * step_ms / batch)


def _largest(points: list[dict[str, Any]], kind: str, size: str) -> tuple[int, float] | None:
    found = [p for p in points if p["kind"] == kind and p.get("L", 1024) == 1024]
    if not found:
        return None
    last = max(found, key=lambda point: int(point[size]))
    return int(last[size]), float(last["ms_median"])


def poisson_arrivals(rate_per_s: float, window_s: float, longest: int, seed: int) -> list[Served]:
    """Draw arrivals, lognormal prompts and outputs, of at most ``longest`` tokens together."""
    draws = random.Random(seed)
    requests: list[Served] = []
    arrival_s = 0.0
    while True:
        arrival_s += draws.expovariate(rate_per_s)
        if arrival_s > window_s:
            return requests
        output = min(_lognormal(draws, *_OUTPUT), longest // 2)
        prompt = min(_lognormal(draws, *_PROMPT), longest - output)
        requests.append(Served(arrival_s, prompt, output))


def _lognormal(draws: random.Random, mean: float, sigma: float, least: int, most: int) -> int:
    drawn = draws.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma)
    return max(least, min(most, round(drawn)))


def serve(driver: CoreDriver, run: str, requests: list[Served]) -> list[Served]:
    """Serve the arrivals in real time; return the requests, all of which have finished."""
    driver.clear()
    driver.take_steps()
    driver.run = run
    prepared = [driver.request(one.prompt, one.planned_out) for one in requests]
    by_id = {driver.request_id(p): one for p, one in zip(prepared, requests, strict=True)}
    # A collection in the middle of a run would be measured as a slow step.
    gc.collect()
    gc.freeze()
    try:
        _loop(driver, requests, prepared, by_id)
    finally:
        gc.unfreeze()
    for request, one in zip(prepared, requests, strict=True):
        one.preempt = int(getattr(request[0], "num_preemptions", 0))
    return requests


def _loop(
    driver: CoreDriver, requests: list[Served], prepared: list[Any], by_id: dict[str, Served]
) -> None:
    driver.restart_clock()
    sent = 0
    while sent < len(requests) or driver.is_busy:
        while sent < len(requests) and requests[sent].arrival <= driver.now_s:
            driver.add(prepared[sent])
            requests[sent].added = driver.now_s
            sent += 1
        if driver.is_busy:
            outputs = driver.step()
            _note(outputs, by_id, driver.now_s)
        else:
            wait_s = requests[sent].arrival - driver.now_s
            if wait_s > 0.0005:
                driver.sleep(min(wait_s - 0.0003, 0.002))


def _note(outputs: Any, by_id: dict[str, Served], now_s: float) -> None:
    """Note the tokens that one step gave."""
    for output in outputs:
        one = by_id.get(output.request_id)
        if one is None or not output.new_token_ids:
            continue
        if not one.out:
            one.first = now_s
            stats = getattr(output, "prefill_stats", None)
            one.cached = int(getattr(stats, "num_cached_tokens", 0) or 0)
        one.out += len(output.new_token_ids)
        one.finish = now_s
