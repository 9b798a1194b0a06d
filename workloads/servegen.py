"""Draw requests from ServeGen's recorded clients, each with its own process and lengths."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sim.arrays import Float64, Int64
from sim.clock import NS_PER_S
from sim.errors import ScenarioError
from sim.request_table import RequestTable
from workloads.readers.servegen_files import BIN_S, ClientRates, Histogram

_MOST_REQUESTS = 20_000_000
_ARRIVALS, _LENGTHS = range(2)  # numbers of the random streams of a seed, client and bin
_TINY = 1e-300  # a number that has a logarithm, in place of 0
_MEDIA = ("image", "audio", "video")


def draw_requests(
    rates: ClientRates,
    *,
    window_s: tuple[float, float] | None = None,
    num_requests: int | None = None,
    requests_per_s: float | None = None,
    seed: int = 0,
) -> RequestTable:
    """Draw the requests of all clients within ``window_s`` of the recording (by default all of it).

    In each 600 s a client sends as many requests as were recorded, from a random start, with gaps
    of its own fitted gamma or Weibull shape, scaled to fill the time. ``requests_per_s`` scales all
    rates by one factor to that mean over the window, so that bursts and the mix of clients are
    kept; ``num_requests`` ends it early. Lengths are drawn from the client's histogram, log-uniform
    inside a bin, input and output independently. A client without lengths takes those of another,
    chosen in proportion to its requests.

    Each client has random streams of its own for each 600 s, which neither the window nor the rate
    changes. Raises ScenarioError for a window outside the recording and for too many requests.
    """
    start_s, end_s = (0.0, rates.duration_s) if window_s is None else window_s
    end_s = min(end_s, rates.duration_s)
    if not 0 <= start_s < end_s:
        raise ScenarioError(
            f"window from {start_s:g} s; the recording of {rates.subset} is "
            f"{rates.duration_s:g} s long"
        )
    inside_s = np.minimum((rates.bin + 1) * BIN_S, end_s) - np.maximum(rates.bin * BIN_S, start_s)
    expected = rates.rate_per_s * np.maximum(inside_s, 0)
    mean_per_s = float(expected.sum()) / (end_s - start_s)
    if mean_per_s == 0:
        raise ScenarioError(f"no client of {rates.subset} sends in [{start_s:g}, {end_s:g}) s")
    factor = 1.0 if requests_per_s is None else requests_per_s / mean_per_s
    total = factor * float(expected.sum())
    at_once = (
        factor
        * BIN_S
        * float(np.bincount(rates.bin[expected > 0], rates.rate_per_s[expected > 0]).max())
    )
    if max(min(total, num_requests or math.inf), at_once) > _MOST_REQUESTS:
        raise ScenarioError(
            f"about {total:,.0f} requests in [{start_s:g}, {end_s:g}) s of {rates.subset}; choose "
            "a part with workload.window_s, a lower workload.rate_per_s, or workload.num_requests"
        )
    drawn = _draw(rates, np.flatnonzero(expected > 0), factor, start_s, end_s, num_requests, seed)
    arrival_s, prompt_tokens, output_tokens, borrowed = drawn
    scaled = "" if requests_per_s is None else f", rates times {factor:.3g}"
    notes = [
        f"drawn from {len(np.unique(rates.client[expected > 0]))} clients of {rates.subset}, "
        f"[{start_s:g}, {end_s:g}) s of the recording, {mean_per_s:.3g} requests/s{scaled}"
    ]
    if borrowed.any():
        notes.append(
            f"{borrowed.mean():.0%} of the requests are of clients without recorded lengths: drawn "
            "from the others, by their requests"
        )
    if any("image_tokens" in fields for fields in rates.lengths.values()):
        notes.append("a prompt is its text and its images, each image's tokens drawn on its own")
    return RequestTable(
        arrival_ns=np.rint((arrival_s - start_s) * NS_PER_S).astype(np.int64),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        priority=np.zeros(len(arrival_s), np.int64),
        source=rates.source,
        skipped_rows=rates.skipped_rows,
        notes=tuple(notes),
    )


def _draw(
    rates: ClientRates,
    rows: Int64,
    factor: float,
    start_s: float,
    end_s: float,
    num_requests: int | None,
    seed: int,
) -> tuple[Float64, Int64, Int64, NDArray[np.bool_]]:
    """Return the arrivals in seconds, prompt and output tokens, and whether lengths are another
    client's."""
    lenders, weights = _clients_with_lengths(rates)
    parts = []
    num_drawn = 0
    rows = rows[np.lexsort((rates.client[rows], rates.bin[rows]))]
    bins = rates.bin[rows]
    for bin_rows in np.split(rows, np.flatnonzero(np.diff(bins)) + 1):
        columns: list[tuple[Float64, Int64, Int64, NDArray[np.bool_]]] = []
        for row in bin_rows.tolist():
            client, number = int(rates.client[row]), int(rates.bin[row])
            rng = np.random.default_rng((seed, _ARRIVALS, client, number))
            expected = float(rates.rate_per_s[row]) * factor * BIN_S
            shape, is_weibull = float(rates.shape[row]), bool(rates.is_weibull[row])
            at_s = (number + _arrival_fractions(rng, expected, shape, is_weibull)) * BIN_S
            rng = np.random.default_rng((seed, _LENGTHS, client, number))
            prompt, output = _lengths(rates, client, lenders, weights, len(at_s), rng)
            is_in = (at_s >= start_s) & (at_s < end_s)
            borrowed = np.full(int(is_in.sum()), client not in rates.lengths)
            columns.append((at_s[is_in], prompt[is_in], output[is_in], borrowed))
        order = np.argsort(np.concatenate([c[0] for c in columns]), kind="stable")
        parts.append([np.concatenate(column)[order] for column in zip(*columns, strict=True)])
        num_drawn += len(order)
        if num_requests is not None and num_drawn >= num_requests:
            break
    arrival_s, prompt, output, borrowed = (
        np.concatenate(column)[:num_requests] for column in zip(*parts, strict=True)
    )
    return arrival_s, prompt, output, borrowed


def _arrival_fractions(
    rng: np.random.Generator, expected: float, shape: float, is_weibull: bool
) -> Float64:
    """Return when the requests of one client come, as fractions of its time in [0, 1).

    Their number is ``expected``, rounded up or down at random so that the mean is exact. The gaps
    are those of the renewal process, laid around a circle with a random start; gaps of shape 1 make
    a Poisson process.
    """
    start, rounding = rng.random(2)
    n = int(expected + rounding)
    if n == 0:
        return np.empty(0)
    # Gaps are kept as logarithms, because most gaps of bursty clients underflow a float.
    if is_weibull:
        log_gaps = np.log(np.maximum(rng.standard_exponential(n), _TINY)) / shape
    else:
        log_gaps = np.log(np.maximum(rng.random(n), _TINY)) / shape
        log_gaps += np.log(rng.standard_gamma(shape + 1, n))
    ends = np.cumsum(np.exp(log_gaps - log_gaps.max()))
    places: Float64 = (start + ends / ends[-1]) % 1.0
    return places


def _clients_with_lengths(rates: ClientRates) -> tuple[Int64, Float64]:
    """Return the clients that have lengths, and each one's share of these clients' requests.

    Raises ScenarioError if there are none.
    """
    clients = np.array(sorted(rates.lengths), np.int64)
    if not len(clients):
        raise ScenarioError(f"{rates.source}: no client of {rates.subset} has lengths")
    requests = np.bincount(rates.client, rates.rate_per_s, minlength=int(clients.max()) + 1)
    weights = requests[clients]
    return clients, weights / weights.sum() if weights.sum() else np.ones(len(clients)) / len(
        clients
    )


def _lengths(
    rates: ClientRates,
    client: int,
    lenders: Int64,
    weights: Float64,
    n: int,
    rng: np.random.Generator,
) -> tuple[Int64, Int64]:
    if client in rates.lengths:
        return _lengths_of(rates.lengths[client], n, rng)
    prompt, output = np.empty(n, np.int64), np.empty(n, np.int64)
    lender = rng.choice(lenders, size=n, p=weights)
    for other in np.unique(lender).tolist():
        own = np.flatnonzero(lender == other)
        prompt[own], output[own] = _lengths_of(rates.lengths[other], len(own), rng)
    return prompt, output


def _lengths_of(
    fields: dict[str, Histogram], n: int, rng: np.random.Generator
) -> tuple[Int64, Int64]:
    """Return prompt tokens (text, and media if there are any) and output tokens of ``n``
    requests."""
    name = "input_tokens" if "input_tokens" in fields else "text_tokens"
    prompt = _sample(fields[name], n, rng)
    if name == "text_tokens":
        for medium in _MEDIA:
            if f"{medium}_count" in fields and f"{medium}_tokens" in fields:
                count = _sample(fields[f"{medium}_count"], n, rng)
                tokens = _sample(fields[f"{medium}_tokens"], int(count.sum()), rng)
                owner = np.repeat(np.arange(n), count)
                prompt = prompt + np.bincount(owner, tokens, minlength=n).astype(np.int64)
    return np.maximum(prompt, 1), _sample(fields["output_tokens"], n, rng)


def _sample(histogram: Histogram, n: int, rng: np.random.Generator) -> Int64:
    """Draw ``[n]`` whole numbers, log-uniform inside a bin; 0 is a bin of its own."""
    low, high, cumulative = histogram
    at = np.minimum(np.searchsorted(cumulative, rng.random(n), "right"), len(low) - 1)
    from_, to = np.maximum(low[at], 1).astype(float), high[at].astype(float)
    value = np.floor(from_ * (to / from_) ** rng.random(n)).astype(np.int64)
    return np.where(low[at] == 0, 0, np.minimum(value, high[at] - 1))
