"""Random scenarios: mostly sensible, with now and then a value at the edge of what is allowed."""

from __future__ import annotations

import random
from typing import Any

import yaml

_MODELS = (
    ["llama-3.1-8b"] * 4
    + ["Qwen/Qwen3-0.6B", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b", "gemma-2-9b"]
    + ["kimi-linear-48b-a3b"]
)
_GPUS = ("H100", "H200", "A100-SXM-80GB", "L40S", "B200")
_SCHEDULERS = ("fcfs", "priority", "prefill_first", "static", "orca", "sarathi", "sglang", "sjf")
_ROUTERS = ("round_robin", "least_loaded", "prefix_affinity", "power_of_two", "session_sticky")
_METHODS = ("draft_model", "eagle", "medusa", "mtp", "ngram", "dflash")


def random_scenario(rng: random.Random) -> dict[str, Any]:
    """Return the fields of a scenario that runs in a fraction of a second, or is refused."""
    values: dict[str, Any] = {
        "model": rng.choice(_MODELS),
        "hardware": {"gpu": rng.choice(_GPUS)},
        "engine": _engine(rng),
        "kv": _kv(rng),
        "workload": _workload(rng),
        "seed": rng.randrange(1000),
        "bands": False,
    }
    if rng.random() < 0.25:
        values["pools"] = _pools(rng)
        values["kv_transfer"] = {
            "mode": rng.choice(["pull", "push"]),
            "nic_bytes_per_s": _edge(rng, [1e8, 1e10, 5e10], [1.0, 1e18]),
        }
    elif rng.random() < 0.4:
        values["pool"] = {"replicas": rng.choice([2, 3, 8]), "router": rng.choice(_ROUTERS)}
    if rng.random() < 0.15:
        values["clients"] = {
            "ttft_timeout_s": rng.choice([0.05, 1, 20]),
            "max_retries": rng.choice([0, 1, 5]),
            "backoff_s": rng.choice([0, 0.1, 2]),
        }
    if rng.random() < 0.1:
        values["faults"] = {"mtbf_s": rng.choice([0.5, 5, 100]), "detection_s": 0.2}
        values["startup"] = {"process_s": rng.choice([0, 3]), "provision_s": 1}
    if rng.random() < 0.2:
        values["slo"] = {"ttft_s": rng.choice([0.1, 1]), "tpot_s": rng.choice([0.01, 0.1])}
    return values


def _edge(rng: random.Random, usual: list[Any], edges: list[Any]) -> Any:
    return rng.choice(edges if rng.random() < 0.1 else usual)


def _engine(rng: random.Random) -> dict[str, Any]:
    engine: dict[str, Any] = {
        "scheduler": rng.choice(["fcfs", rng.choice(_SCHEDULERS)]),
        "max_num_seqs": _edge(rng, [4, 16, 64, 256], [1, 2]),
        "max_num_batched_tokens": _edge(rng, [256, 1024, 2048, 8192], [1, 16, 64]),
        "async_scheduling": rng.random() < 0.6,
    }
    if rng.random() < 0.2:
        engine["tensor_parallel_size"] = rng.choice([2, 4, 8])
    if rng.random() < 0.08:
        engine["pipeline_parallel_size"] = 2
    if rng.random() < 0.25:
        engine["speculative"] = {"method": rng.choice(_METHODS)}
        if rng.random() < 0.5:
            engine["speculative"]["num_speculative_tokens"] = rng.choice([1, 3, 7])
    return engine


def _kv(rng: random.Random) -> dict[str, Any]:
    kv: dict[str, Any] = {"block_size": rng.choice([16, 16, 32, 128])}
    if rng.random() < 0.4:
        kv["num_gpu_blocks"] = _edge(rng, [64, 300, 2000], [2, 3, 10])
    if rng.random() < 0.3:
        kv["enable_prefix_caching"] = rng.random() < 0.5
    if rng.random() < 0.1:
        kv["tiers"] = {"host": {"capacity_gib": rng.choice([0.1, 8])}}
    if rng.random() < 0.15:
        kv["cache_dtype"] = "fp8"
    return kv


def _workload(rng: random.Random) -> dict[str, Any]:
    def tokens(usual: list[int], edges: list[int]) -> dict[str, Any]:
        if rng.random() < 0.5:
            return {"fixed": _edge(rng, usual, edges)}
        return {"lognormal": [[1, rng.uniform(2, 6.5), rng.uniform(0.1, 1.2)]], "max": 3000}

    generator: dict[str, Any] = {
        "input_tokens": tokens([20, 100, 700], [1, 2, 2500]),
        "output_tokens": tokens([5, 40, 150], [1, 2, 600]),
    }
    workload: dict[str, Any] = {"num_requests": rng.choice([1, 5, 25, 60]), "generator": generator}
    kind = rng.random()
    if kind < 0.2:
        generator["arrivals"] = "all-at-once"
    elif kind < 0.35:
        workload["max_concurrency"] = rng.choice([1, 3, 10])
    else:
        workload["rate_per_s"] = _edge(rng, [1, 20, 200], [0.01, 1e5])
    return workload


def _pools(rng: random.Random) -> list[dict[str, Any]]:
    pools = []
    for role in ("prefill", "decode"):
        pool: dict[str, Any] = {"name": role, "role": role, "replicas": rng.choice([1, 2])}
        if rng.random() < 0.5:
            seqs = rng.choice([2, 8, 32])
            pool["engine"] = {"max_num_seqs": seqs, "max_num_batched_tokens": seqs * 4}
        if rng.random() < 0.3:
            pool["kv"] = {"num_gpu_blocks": rng.choice([20, 200])}
        pools.append(pool)
    return pools


_SNIPPETS = ("[", "{", "&a [*a, *a]", "1e999", ".nan", "-1", "9" * 30, "\x1b[31m", "12:30", "null")
_WORDS = ("!!python/object:os.system x", "subprocess:Popen", "../../etc/passwd", "x" * 300, "yes")


def damaged(rng: random.Random, values: dict[str, Any]) -> bytes:
    """Return a scenario's text with a few bytes, lines or values that do not belong there."""
    text = yaml.safe_dump(values, sort_keys=False)
    for _ in range(rng.randint(1, 3)):
        lines = text.splitlines()
        place, kind = rng.randrange(len(lines)), rng.random()
        if kind < 0.5 and ":" in lines[place]:
            key = lines[place].partition(":")[0]
            lines[place] = f"{key}: {rng.choice(_SNIPPETS + _WORDS)}"
        elif kind < 0.65:
            del lines[place]
        elif kind < 0.8:
            lines.insert(place, rng.choice(lines))
        else:
            cut = rng.randrange(len(text))
            lines = (text[:cut] + rng.choice(_SNIPPETS) + text[cut + rng.randint(0, 9) :]).split(
                "\n"
            )
        text = "\n".join(lines) or "x"
    content = text.encode()
    if rng.random() < 0.2:
        at = rng.randrange(len(content))
        content = content[:at] + bytes(rng.randrange(256) for _ in range(3)) + content[at:]
    return content
