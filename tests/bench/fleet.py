"""A large fleet in one process: 256 engines, a million requests, and a router that watches caches.

Lengths are those of the Azure conversation trace (or its preset if the trace is absent), at 5
requests/s per engine. The trace has no prefixes. Here every four requests are turns of one
conversation (assumed), half a minute apart. Turns share the part of their prompts that both can
have, in ids of 512 tokens as in Mooncake, or of 128 (four times the number of cache entries).
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np

from sim.request_table import PrefixChains, RequestTable, request_table
from tests.properties.checkout import SHARED

AZURE = SHARED / "data" / "traces" / "azure_conv_2023.csv.gz"
_PER_ENGINE_PER_S = 5.0
_TURNS, _APART_S = 4, 30.0
RUNS = (("prefix_affinity", 512), ("prefix_affinity", 128), ("least_loaded", 512))


def fleet_table(
    num_requests: int, num_engines: int, block_tokens: int = 512, seed: int = 0
) -> RequestTable:
    """Poisson arrivals of requests with Azure's lengths and conversations' prefixes."""
    from scenarios.build.workload.table import build_table
    from scenarios.files.load import parse_scenario

    source: dict[str, Any] = {"trace": {"path": str(AZURE)}}
    if not AZURE.exists():
        source = {"preset": "azure-conv", "num_requests": 20_000, "rate_per_s": 5.0}
    lengths = build_table(parse_scenario({"model": "llama-3.1-8b", "workload": source}))
    rng = np.random.default_rng(seed)
    rows = np.arange(num_requests) % len(lengths)
    prompts, outputs = lengths.prompt_tokens[rows], lengths.output_tokens[rows]
    rate_per_s = _PER_ENGINE_PER_S * num_engines
    between = round(rate_per_s * _APART_S)  # requests from one turn to the next
    place, turn_block = np.arange(num_requests) % between, np.arange(num_requests) // between
    conversation = turn_block // _TURNS * between + place
    blocks = -(-prompts // block_tokens)
    offsets = np.concatenate([[0], np.cumsum(blocks)])
    inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], blocks)
    ids = np.repeat(conversation, blocks) * (int(blocks.max()) + 1) + inside
    chains = PrefixChains(ids=ids, offsets=offsets, tokens=prompts, block_tokens=block_tokens)
    arrival_s = np.cumsum(rng.exponential(1 / rate_per_s, num_requests))
    return request_table(arrival_s, prompts, outputs, chains=chains)


def measure(
    num_requests: int, num_engines: int, block_tokens: int, router: str
) -> dict[str, float]:
    """Simulate once in this process: seconds, peak bytes, and what the work was, a request."""
    from scenarios.build.builder import build
    from scenarios.files.load import parse_scenario
    from sim.fleet.cluster import run_cluster

    table = fleet_table(num_requests, num_engines, block_tokens)
    scenario = parse_scenario(
        {
            "model": "llama-3.1-8b",
            "pool": {"replicas": num_engines, "router": router},
            "workload": {"preset": "azure-conv", "num_requests": num_requests, "rate_per_s": 1.0},
        }
    )
    built = build(scenario)
    started, cpu = time.perf_counter(), time.process_time()
    log = run_cluster(table, built.pool)
    return {
        "wall_s": time.perf_counter() - started,
        "core_s": time.process_time() - cpu,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "events": log.num_events / num_requests,
        "plans": sum(steps.plans for steps in log.steps) / num_requests,
        "steps": sum(steps.num_visible for steps in log.steps) / num_requests,
        "cached": sum(log.requests.cached_tokens) / int(table.prompt_tokens.sum()),
    }


def print_all(*, quick: bool) -> None:
    """A row a run: each in a process of its own, so that memory is its own too."""
    size, engines = (50_000, 16) if quick else (1_000_000, 256)
    print(f"\nA fleet: {engines} engines, {size:,} requests, 5 requests/s each; work a request")
    names = ("id tokens", "wall_s", "core_s", "peak MiB", "events", "plans", "steps", "from cache")
    print(f"{'router':>22}" + "".join(f"{name:>12}" for name in names))
    for router, block_tokens in RUNS:
        arguments = [str(size), str(engines), str(block_tokens), router]
        command = [sys.executable, "-m", "tests.bench.fleet", *arguments]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found: dict[str, float] = json.loads(output)
        cells = [str(block_tokens), f"{found['wall_s']:.0f}", f"{found['core_s']:.0f}"]
        cells.append(f"{found['peak_bytes'] / 2**20:,.0f}")
        cells += [f"{found[name]:.2f}" for name in ("events", "plans", "steps")]
        cells.append(f"{found['cached']:.0%}")
        print(f"{router:>22}" + "".join(f"{cell:>12}" for cell in cells), flush=True)


if __name__ == "__main__":
    size, engines, block_tokens, name = sys.argv[1:]
    print(json.dumps(measure(int(size), int(engines), int(block_tokens), name)))
