"""Helpers for tests of what-ifs: a scenario that runs in milliseconds, and its comparison."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from scenarios.experiments.whatif.changes import Change
from scenarios.experiments.whatif.comparison import WhatIf, what_if

TENSOR_PARALLEL = Change(name="TP 2", settings={"engine.tensor_parallel_size": 2})
FP8_WEIGHTS = Change(name="fp8 weights", settings={"engine.quantization": "fp8"})


def tiny(num_requests: int = 120, **top: Any) -> dict[str, Any]:
    """Chat-like requests on one H200, at about a third of what it can serve."""
    lengths = {"lognormal": [{"mu": 5.0, "sigma": 0.8}]}
    generator = {"input_tokens": lengths, "output_tokens": {"fixed": 20}}
    workload = {"generator": generator, "rate_per_s": 20, "num_requests": num_requests}
    slo = {"ttft_s": 0.5, "tpot_s": 0.05}
    return {"model": "meta-llama/Llama-3.1-8B", "workload": workload, "slo": slo} | top


def compared(values: Mapping[str, Any], *changes: Change, **options: Any) -> WhatIf:
    """A comparison in this process."""
    return what_if(values, changes, **{"replications": 3, "jobs": 1} | options)


@cache
def two_changes() -> WhatIf:
    """Tensor parallelism, fp8 weights and both, three replications; made once."""
    return compared(tiny(), TENSOR_PARALLEL, FP8_WEIGHTS)
