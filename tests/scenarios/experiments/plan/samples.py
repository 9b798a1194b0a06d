"""A small plan for the tests."""

from __future__ import annotations

from typing import Any

PLAN: dict[str, Any] = {
    "scenario": {
        "model": "llama-3.1-8b",
        "pool": {"router": "least_loaded"},
        "workload": {
            "generator": {
                "arrivals": "poisson",
                "input_tokens": {"lognormal": [{"mu": 6.5, "sigma": 0.6}], "max": 4000},
                "output_tokens": {"lognormal": [{"mu": 3, "sigma": 0.5}], "max": 100},
            }
        },
    },
    "demand": {"now": 40, "growth_per_year": 0.5, "years": 1, "peak": 1.2},
    "targets": [
        {"metric": "ttft", "percentile": 95, "within_s": 0.25},
        {"metric": "tpot", "percentile": 90, "within_s": 0.03},
    ],
    "gpus": [
        {"gpu": "H100", "usd_per_gpu_h": 2.5, "available": 12},
        {"gpu": "A100-SXM-80GB", "usd_per_gpu_h": 1.1, "available": 20},
    ],
    "layouts": [{"tensor_parallel_size": 1}],
    "options": {"engine.max_num_batched_tokens": [1024, 8192]},
    "most_replicas": 6,
    "num_requests": 150,
    "confidence": 0.75,
    "ranked": 1,
}
