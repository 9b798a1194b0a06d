"""What a workload looks like, in the numbers trace papers report."""

from __future__ import annotations

import math

import numpy as np

from sim.clock import NS_PER_S, to_s
from sim.request_table import Int64, RequestTable
from workloads.chains import matched_tokens

IDC_WINDOWS_S = (1, 10, 60)
PERCENTILES = (50, 90, 99)


def describe(table: RequestTable) -> dict[str, float]:
    """Statistics of all requests of the table; NaN where there are too few to have one.

    ``span_s`` is from the first arrival to the last and ``requests_per_s`` is (n - 1) / span.
    ``interarrival_cv`` is standard deviation over mean of the gaps. ``idc_<w>s`` (index of
    dispersion) is variance over mean of the arrivals counted in whole windows of w seconds; a
    Poisson process has 1 in both. ``prefix_hit_fraction`` is the share of all prompt tokens that
    an earlier request already held, as a cache without limit would see it.
    """
    n = len(table)
    since_first_ns = table.arrival_ns - (table.arrival_ns[0] if n else 0)
    span_s = to_s(int(since_first_ns[-1])) if n else 0.0
    gaps_ns = np.diff(since_first_ns)
    summary = {
        "num_requests": n,
        "span_s": span_s,
        "requests_per_s": (n - 1) / span_s if span_s else math.nan,
        "interarrival_cv": float(gaps_ns.std() / gaps_ns.mean()) if span_s else math.nan,
        **{f"idc_{w}s": _idc(since_first_ns, w * NS_PER_S) for w in IDC_WINDOWS_S},
        **_lengths("prompt_tokens", table.prompt_tokens),
        **_lengths("output_tokens", table.output_tokens),
    }
    if table.chains is not None and n:
        blocks = table.chains.ids
        summary["prefix_block_tokens"] = table.chains.block_tokens
        summary["prefix_blocks"] = len(blocks)
        summary["distinct_prefix_blocks"] = len(np.unique(blocks))
        hits = int(matched_tokens(table.chains).sum())
        summary["prefix_hit_fraction"] = hits / int(table.prompt_tokens.sum())
    return summary


def _idc(since_first_ns: Int64, window_ns: int) -> float:
    num_windows = int(since_first_ns[-1]) // window_ns if len(since_first_ns) else 0
    if num_windows < 2:
        return math.nan
    # Counted by the occupied windows alone: a long silence must not cost memory.
    windows = since_first_ns // window_ns
    _, counts = np.unique(windows[windows < num_windows], return_counts=True)
    mean = counts.sum() / num_windows
    return float(np.square(counts, dtype=np.float64).sum() / num_windows - mean**2) / float(mean)


def _lengths(name: str, tokens: Int64) -> dict[str, float]:
    if not len(tokens):
        return dict.fromkeys(
            (f"{name}_{s}" for s in ("mean", "p50", "p90", "p99", "max")), math.nan
        )
    percentiles = np.percentile(tokens, PERCENTILES)
    return {
        f"{name}_mean": float(tokens.mean()),
        **{f"{name}_p{p}": float(v) for p, v in zip(PERCENTILES, percentiles, strict=True)},
        f"{name}_max": int(tokens.max()),
    }
