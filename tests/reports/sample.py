"""A small synthetic result folder in the format of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from reports.folder import STEP_COLUMNS
from sim.accounts import TIME_ACCOUNTS

E2E_SHARES = {
    "admission_queue": 0.02,
    "scheduling_wait": 0.01,
    "prefill_compute": 0.05,
    "prefill_memory": 0.01,
    "decode_weight_reads": 0.55,
    "decode_state_reads": 0.15,
    "launch_and_host": 0.11,
    "others_prefill": 0.08,
    "preemption_recompute": 0.015,
    "remainder": 0.005,
}
TTFT_SHARES = {
    "admission_queue": 0.32,
    "scheduling_wait": 0.08,
    "prefill_compute": 0.44,
    "prefill_memory": 0.07,
    "launch_and_host": 0.09,
}
STEP_SHARES = {
    "prefill_compute": 0.25,
    "decode_weight_reads": 0.5,
    "decode_state_reads": 0.2,
    "remainder": 0.05,
}


def write_sample(
    folder: Path, *, requests: int = 2000, replicas: int = 1, rejected: int = 20, seed: int = 0
) -> Path:
    """Write a result folder with log-normal latencies; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = sample_requests(requests, replicas, min(rejected, requests), seed)
    rows.to_parquet(folder / "requests.parquet")
    last_s = float(rows["arrival_s"].max()) if requests else 0.0
    sample_steps(last_s, replicas, seed).to_parquet(folder / "steps.parquet")
    write_summary(folder, sample_summary(rows, replicas))
    (folder / "scenario.yaml").write_text(
        "model: Llama-3.1-8B\nhardware:\n  gpu: H200\n  replicas: 1\nworkload: azure-conv\n"
    )
    return folder


def write_summary(folder: Path, summary: dict[str, Any]) -> None:
    (folder / "summary.json").write_text(json.dumps(summary))


def sample_requests(n: int, replicas: int, rejected: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(0.18, n))
    wave = 1 + 0.6 * np.sin(arrival_s / 40)
    ttft_s = rng.lognormal(-2.7, 0.55, n) * wave
    output_tokens = np.maximum(rng.lognormal(4.9, 0.8, n).astype(int), 1)
    tpot_s = np.where(output_tokens > 1, rng.lognormal(-4.4, 0.18, n) * (0.9 + 0.1 * wave), np.nan)
    e2e_s = ttft_s + np.nan_to_num(tpot_s) * (output_tokens - 1)
    gone = np.arange(n) >= n - rejected
    for times_s in (ttft_s, tpot_s, e2e_s):
        times_s[gone] = np.nan
    accounts = {
        f"{name}_ns": np.nan_to_num(e2e_s * E2E_SHARES.get(name, 0.0) * 1e9).astype(np.int64)
        for name in TIME_ACCOUNTS
    }
    return pd.DataFrame(
        {
            "request": np.arange(n),
            "replica": np.arange(n) % replicas,
            "status": np.where(gone, "rejected", "finished").astype(object),
            "reject_reason": np.where(gone, "longer than max_model_len", "").astype(object),
            "arrival_s": arrival_s,
            "prompt_tokens": np.maximum(rng.lognormal(6.5, 1.0, n).astype(int), 1),
            "output_tokens": output_tokens,
            "cached_tokens": np.zeros(n, int),
            "preemptions": np.zeros(n, int),
            "queue_s": ttft_s * 0.3,
            "ttft_s": ttft_s,
            "tpot_s": tpot_s,
            "e2e_s": e2e_s,
            "good": (ttft_s <= 0.25) & ~(tpot_s > 0.016),
            **accounts,
        }
    )


def sample_steps(last_s: float, replicas: int, seed: int, rows: int = 4000) -> pd.DataFrame:
    rng = np.random.default_rng(seed + 1)
    frames = []
    for replica in range(replicas if last_s else 0):
        plan_s = np.sort(rng.uniform(0, last_s, rows))
        wave = 1 + 0.6 * np.sin(plan_s / 40 + replica)
        running = rng.poisson(14 * wave)
        prefill_seqs = rng.integers(0, 2, rows)
        steps = rng.integers(1, 4, rows)
        gaps_s = np.diff(plan_s, append=last_s + 0.01)
        frames.append(
            pd.DataFrame(
                {
                    "replica": replica,
                    "plan_s": plan_s,
                    "gpu_end_s": plan_s + gaps_s,
                    "steps": steps,
                    "gpu_s": gaps_s * 0.9,
                    "decode_seqs": running,
                    "decode_context_tokens": running * 900,
                    "prefill_seqs": prefill_seqs,
                    "prefill_tokens": prefill_seqs * rng.integers(50, 900, rows),
                    "prefill_context_tokens": 0,
                    "prefill_pairs": 0,
                    "logits": running + prefill_seqs,
                    "running": running,
                    "waiting": rng.poisson(0.4 * wave),
                    "free_blocks": 57_000 - running * 1500,
                    "preempted": 0,
                }
            )
        )
    return pd.concat(frames) if frames else pd.DataFrame(columns=list(STEP_COLUMNS))


def sample_summary(rows: pd.DataFrame, replicas: int = 1) -> dict[str, Any]:
    done = rows[rows["status"] == "finished"]
    figures: list[dict[str, Any]] = []

    def add(name: str, statistic: str, value: float | None, unit: str, **more: Any) -> None:
        figures.append(
            {
                "name": name,
                "statistic": statistic,
                "value": value,
                "unit": unit,
                "population": "arrived requests",
                "count": len(rows),
                "evidence": "datasheet",
                **more,
            }
        )

    latencies = {
        "ttft": (done["ttft_s"], "finished requests"),
        "tpot": (done["tpot_s"].dropna(), "finished requests of two tokens or more"),
        "itl": (done["tpot_s"].dropna(), "gaps between tokens"),
        "e2e": (done["e2e_s"], "finished requests"),
        "queue": (done["queue_s"], "finished requests"),
    }
    for name, (values, population) in latencies.items():
        for statistic in ("mean", "p50", "p90", "p95", "p99", "max"):
            value = None
            if len(values):
                value = {"mean": values.mean(), "max": values.max()}.get(statistic)
                value = value or float(values.quantile(int(statistic[1:]) / 100))
            add(name, statistic, value, "s", population=population, count=len(values))
    window_s = float(rows["arrival_s"].max()) if len(rows) else 1.0
    good = int(rows["good"].sum())
    window = {"population": "the measured window", "count": None}
    steps = {"population": "engine-busy time", "count": None}
    add("request_throughput", "value", len(done) / window_s, "1/s", **window)
    add("goodput", "value", good / window_s, "1/s", **window)
    add("input_throughput", "value", 5842.1, "tokens/s", **window)
    add("output_throughput", "value", 1033.7, "tokens/s", **window)
    add("total_throughput_per_gpu", "value", 6875.8, "tokens/s", **window)
    add("attainment", "value", good / len(rows) if len(rows) else None, "fraction")
    add("availability", "value", len(done) / len(rows) if len(rows) else None, "fraction")
    add("gpu_busy", "value", 0.734, "fraction", **window)
    add("kv_occupancy", "mean", 0.2143, "fraction", **steps)
    add("kv_occupancy", "max", 0.713, "fraction", **steps)
    add("running", "mean", 14.3, "requests", **steps)
    add("running", "max", 41, "requests", **steps)
    add("waiting", "mean", 0.41, "requests", **steps)
    add("waiting", "max", 6, "requests", **steps)
    add("cache_hit_fraction", "value", 0.0, "fraction")
    add("preemptions", "value", 3, "count")
    finished = len(done)
    mean_e2e_s = float(done["e2e_s"].mean()) if finished else 0.0
    mean_ttft_s = float(done["ttft_s"].mean()) if finished else 0.0
    attainment = good / len(rows) if len(rows) else None
    rejected = len(rows) - finished
    return {
        "schema": "fleetcast.result/1",
        "fleetcast_version": "0.1.0",
        "conditions": {
            "model": "Llama-3.1-8B",
            "gpu": "H200",
            "replicas": replicas,
            "tensor_parallel_size": 1,
            "gpus": replicas,
            "engine": "vllm-0.25",
            "scheduler": "fcfs",
            "router": "round_robin",
            "workload": "azure-conv preset, Poisson arrivals at 5.5 requests/s",
            "cost_model": "roofline",
            "seed": 0,
            "slo": {"ttft_s": 0.25, "tpot_s": 0.016, "e2e_s": None},
            "notes": ["3 s ticks spread"],
        },
        "figures": figures,
        "requests": {
            "arrived": len(rows),
            "finished": finished,
            "rejected": rejected,
            "failed": 0,
            "unfinished": 0,
            "reject_reasons": {"longer than max_model_len": rejected} if rejected else {},
        },
        "slo": {
            "attainment": attainment,
            "goodput_per_s": good / window_s,
            "by_target": {
                "ttft": float((rows["ttft_s"] <= 0.25).mean()) if len(rows) else None,
                "tpot": float((rows["tpot_s"] <= 0.016).mean()) if len(rows) else None,
            },
        },
        "evidence": {"datasheet": 0.9, "fitted": 0.1},
        "sources": [
            {
                "what": "HBM bandwidth",
                "value": "4800 GB/s",
                "label": "datasheet",
                "source": "NVIDIA H200 datasheet",
            },
            {
                "what": "HBM efficiency",
                "value": "0.92",
                "label": "fitted",
                "source": "https://example.org/calibration/h200",
            },
        ],
        "e2e_accounts_s": {name: mean_e2e_s * E2E_SHARES.get(name, 0.0) for name in TIME_ACCOUNTS},
        "ttft_accounts_s": {
            name: mean_ttft_s * TTFT_SHARES.get(name, 0.0) for name in TIME_ACCOUNTS
        },
        "step_accounts_s": {name: 300.0 * STEP_SHARES.get(name, 0.0) for name in TIME_ACCOUNTS},
        "device_bytes": {
            "weights": 16060522496,
            "workspace": 5000000000,
            "kv_cache": 117000000000,
            "free": 12049357824,
            "total": 150109880320,
        },
        "saturation": {"offered_per_s": 5.5, "saturation_per_s": 24.1, "load": 0.23},
        "warnings": [
            {
                "code": "few_samples",
                "text": "The p99 of TTFT rests on 20 requests beyond it; "
                "run longer, or read p90 instead.",
            }
        ],
        "run": {"steps": 123456, "runs": 65000, "plans": 70000, "events": 120000, "wall_s": 3.2},
    }
