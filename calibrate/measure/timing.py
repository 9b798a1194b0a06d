"""Time one call as an engine would see it: inside a CUDA graph, with cold inputs.

A GPU works in bursts of at most about 10 ms with pauses of twice that, so that neither its power
limit nor its temperature lowers the clock. On a processor, single calls are timed with cold caches.
Linux counts, for each thread, the time it was ready to run without a free processor: a repeat with
more than a little of that shows how busy the machine is, not how long the call takes.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from calibrate.measure.case import Prepared

_BURST_S = 10e-3
_PAUSE = 2.0
_GRAPH_S = 0.6e-3
"""Approximate duration of a graph, long enough for its own launch not to count."""
_MOST_CALLS = 400
"""Most calls in one graph."""
_MOST_QUEUED = 16
"""Most calls that the host can launch within the head start."""
_BUSY_S = 10e-3
_MOST_REPLAYS = 20
_HEAD_START_CYCLES = 1_400_000
"""Clock cycles of the host's head start, about 0.7 ms."""
_CPU_BUSY_S = 0.05
_SCRUB_S = 3e-3
_FEWEST_REPEATS = 5
_MOST_REPEATS = 60
_PATIENCE = 10
"""Multiple of the time limit that is spent to get the fewest repeats if other processes disturb."""

Call = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one call: median, 10th and 90th percentile over ``repeats``."""

    seconds: float
    seconds_low: float
    seconds_high: float
    repeats: int
    calls: int
    """Number of calls in one repeat."""
    graph: bool


class Pacer:
    """Keeps pauses between bursts. Work done in between counts towards the pause."""

    def __init__(self) -> None:
        self._rested_at = 0.0

    def wait(self) -> None:
        """Wait until the device has rested."""
        time.sleep(max(0.0, self._rested_at - time.perf_counter()))

    def worked(self, busy_s: float) -> None:
        """Note that the device has just worked for ``busy_s``."""
        self._rested_at = time.perf_counter() + _PAUSE * busy_s


def time_calls(
    prepared: Prepared,
    device: str,
    pacer: Pacer,
    agree: Callable[[float], float] = float,
) -> Timing:
    """Time a case that has been prepared (and checked).

    ``agree`` makes processes that call together use the same number of calls. It gets this
    process's estimate of a duration and returns the one to use, and every process waits in it for
    the others.
    """
    if device == "cpu":
        return _on_host(prepared.calls, agree, most_s=_CPU_BUSY_S, before=scrubber())
    import torch

    if prepared.host_clock:
        return _on_host(prepared.calls, agree, most_s=_BUSY_S, before=torch.cuda.synchronize)
    if prepared.graphable:
        return _in_graph(prepared.calls, pacer, agree)
    return _with_events(prepared.calls, pacer, agree)


def foreseen_s(call_s: float, copies: int, device: str) -> float:
    """Return the predicted seconds to time a call of ``call_s``, without the last pause, which
    other work may fill."""
    if device == "cpu":
        repeats = max(_FEWEST_REPEATS, min(_MOST_REPEATS, _CPU_BUSY_S / call_s))
        return repeats * (call_s + _SCRUB_S)
    replay_s = _num_calls(copies, call_s) * call_s
    leads = 1 if replay_s > _BURST_S / 2 else 3
    busy_s = (leads + _num_replays(replay_s)) * replay_s
    warm_up_s = _MOST_QUEUED * call_s if _MOST_QUEUED * call_s < _BURST_S else 4 * call_s
    return warm_up_s + busy_s + _PAUSE * max(0.0, busy_s - max(_BURST_S, replay_s))


def _num_replays(replay_s: float) -> int:
    fewest = 5 if replay_s < _BURST_S / 2 else 3
    return max(fewest, min(_MOST_REPLAYS, round(_BUSY_S / replay_s)))


def _in_graph(calls: Sequence[Call], pacer: Pacer, agree: Callable[[float], float]) -> Timing:
    import torch

    number = _num_calls(len(calls), _warm_up(calls, agree))
    graph = _captured([calls[i % len(calls)] for i in range(number)])
    pacer.wait()
    lead_s = agree(_timed(graph.replay))
    pacer.worked(lead_s)
    # The first replay also uploads the graph to the device.
    replay_s = lead_s if lead_s > _BURST_S / 2 else agree(_timed(graph.replay))
    seconds: list[float] = []
    num_replays = _num_replays(replay_s)
    a_burst = max(1, round(_BURST_S / replay_s))
    while len(seconds) < num_replays:
        pacer.wait()
        agree(0.0)
        if replay_s < _BURST_S / 5:
            graph.replay()  # lets the host get ahead and the clock rise
        pairs = [_bracketed(graph.replay) for _ in range(min(a_burst, num_replays - len(seconds)))]
        torch.cuda.synchronize()
        burst = [start.elapsed_time(end) / 1e3 for start, end in pairs]
        pacer.worked(sum(burst))
        seconds += burst
    return _timing(seconds, number, graph=True)


def _with_events(calls: Sequence[Call], pacer: Pacer, agree: Callable[[float], float]) -> Timing:
    """Time calls that no graph can capture: a few in a row, all queued before the first runs."""
    call_s = _warm_up(calls, agree)
    a_repeat = max(1, min(_MOST_QUEUED, int(_GRAPH_S / call_s)))
    seconds: list[float] = []
    for repeat in range(_num_replays(a_repeat * call_s)):
        some = [calls[(repeat * a_repeat + number) % len(calls)] for number in range(a_repeat)]
        pacer.wait()
        agree(0.0)
        seconds.append(_timed_row(some))
        pacer.worked(seconds[-1])
    return _timing(seconds, a_repeat, graph=False)


def _on_host(
    calls: Sequence[Call], agree: Callable[[float], float], most_s: float, before: Call
) -> Timing:
    """Time single calls, each after ``before``. Those that other processes disturbed do not
    count."""
    seconds: list[float] = []
    waited: list[float] = []
    calls[0]()
    with Waiting() as waiting:
        while agree(float(_wants_more(seconds, waited, most_s))):
            for _ in range(_FEWEST_REPEATS):
                call = calls[len(seconds) % len(calls)]
                before()
                waited_s = waiting.seconds()
                start = time.perf_counter()
                call()
                seconds.append(time.perf_counter() - start)
                waited.append(waiting.seconds() - waited_s)
    before()
    return _timing(quiet_repeats(seconds, waited), 1, graph=False)


def _wants_more(seconds: Sequence[float], waited: Sequence[float], most_s: float) -> bool:
    spent_s = sum(seconds)
    if sum(map(is_quiet, seconds, waited)) < _FEWEST_REPEATS:
        return len(seconds) < _FEWEST_REPEATS or spent_s < _PATIENCE * most_s
    return len(seconds) < _MOST_REPEATS and spent_s < most_s


def _warm_up(calls: Sequence[Call], agree: Callable[[float], float]) -> float:
    """Return the approximate seconds of one call. Afterwards, all kernels are compiled and
    loaded."""
    import torch

    calls[0]()
    torch.cuda.synchronize()
    first_s = agree(_timed(calls[0]))
    number = max(1, min(_MOST_QUEUED, int(_BURST_S / first_s)))
    return agree(_timed_row([calls[i % len(calls)] for i in range(number)]) / number)


def _num_calls(copies: int, call_s: float) -> int:
    """Return the number of calls in one graph: equally many per copy, unless a burst is too
    short for that."""
    if copies * call_s > _BURST_S:
        return max(1, int(_BURST_S / call_s))
    return copies * max(1, math.ceil(min(_MOST_CALLS, _GRAPH_S / call_s) / copies))


def _captured(calls: Sequence[Call]) -> Any:
    """Capture the calls in a CUDA graph. The current stream must not be the default one.

    `torch.cuda.graph` would empty the memory cache each time, which takes longer than the timing.
    """
    import torch

    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    # Other threads (NCCL's watchdog) may call the driver during the capture.
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        for call in calls:
            call()
    finally:
        graph.capture_end()
    return graph


def _timed(call: Call) -> float:
    import torch

    start, end = _bracketed(call)
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _timed_row(calls: Sequence[Call]) -> float:
    """Return the seconds of several calls in a row, queued while the device is kept busy.

    One more call precedes them, which synchronizes devices that call together.
    """
    import torch

    torch.cuda._sleep(_HEAD_START_CYCLES)
    calls[0]()
    return _timed(lambda: [call() for call in calls])


def _bracketed(call: Call) -> tuple[Any, Any]:
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    return start, end


def _timing(seconds: Sequence[float], calls: int, graph: bool) -> Timing:
    import numpy as np

    low, median, high = np.percentile(seconds, (10, 50, 90)) / calls
    return Timing(
        seconds=float(median),
        seconds_low=float(low),
        seconds_high=float(high),
        repeats=len(seconds),
        calls=calls,
        graph=graph,
    )


_NS_PER_S = 1e9
_MOST_WAITING = 0.02
"""Largest share of a repeat that its threads may have waited."""
_TASKS = "/proc/self/task"
_SCRUB_NUMBERS = 2**22
"""16 MB, which is several times what a few cores have to themselves."""


class Waiting:
    """Measures how long this process's threads have waited for a processor. Threads that start
    later are not included. The result is 0 on systems without such counts."""

    def __init__(self) -> None:
        self._files: list[int] = []
        try:
            for thread in os.listdir(_TASKS):
                self._files.append(os.open(f"{_TASKS}/{thread}/schedstat", os.O_RDONLY))
        except OSError:
            self.close()

    def seconds(self) -> float:
        """Return the total waiting time of all threads, since each began."""
        waited_ns = 0
        for file in self._files:
            try:
                waited_ns += int(os.pread(file, 64, 0).split()[1])
            except (OSError, IndexError):  # the thread has ended
                continue
        return waited_ns / _NS_PER_S

    def close(self) -> None:
        """Close the files that are read."""
        for file in self._files:
            os.close(file)
        self._files = []

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_quiet(seconds: float, waited: float) -> bool:
    """Return whether a repeat of ``seconds`` during which threads ``waited`` was undisturbed."""
    return waited <= _MOST_WAITING * seconds


def quiet_repeats(seconds: Sequence[float], waited: Sequence[float]) -> list[float]:
    """Return the seconds of the undisturbed repeats, or of the shortest one if there are none."""
    quiet = [s for s, w in zip(seconds, waited, strict=True) if is_quiet(s, w)]
    return quiet or [min(seconds)]


@lru_cache(maxsize=1)
def scrubber() -> Callable[[], object]:
    """Return a function that leaves the cores' caches as the other operators of a step do: full
    of other data, and without the code of the next operator."""
    import torch

    numbers = torch.zeros(_SCRUB_NUMBERS)
    return lambda: numbers.add_(1.0)
