"""Layers of families read by rule in small runs: jumps equal steps, accounts balance."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from scenarios.build.builder import build
from scenarios.build.workload.table import build_table
from scenarios.files.load import parse_scenario
from tests.equivalence.runs import check_audited_jumps
from tests.properties.checkout import CHECKOUT

PUBLISHED: dict[str, dict[str, Any]] = yaml.safe_load(
    (CHECKOUT / "tests/costmodels/models/published_sizes.yaml").read_text(encoding="utf-8")
)["checkpoints"]
SERVED = {
    "ai21labs/Jamba-v0.1": 2,
    "tiiuae/Falcon-H1-34B-Instruct": 2,
    "LiquidAI/LFM2-8B-A1B": 1,
    "ibm-granite/granite-4.0-h-small": 2,
    "XiaomiMiMo/MiMo-V2-Flash": 8,
    "meituan-longcat/LongCat-Flash-Chat": 16,
}


@pytest.mark.parametrize("model", SERVED)
@pytest.mark.parametrize("tight", [False, True], ids=["roomy", "tight"])
def test_a_small_run(model: str, tight: bool, tmp_path: Path) -> None:
    """``tight``: a pool that holds little more than the longest request."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PUBLISHED[model]["config"] | {"max_position_embeddings": 131_072}))
    asked = parse_scenario(
        {
            "model": str(path),
            "hardware": {"gpu": "h200"},
            "engine": {"tensor_parallel_size": SERVED[model]},
            "workload": {"preset": "azure-conv", "num_requests": 30, "rate_per_s": 3.0},
            "bands": False,
        }
    )
    built, table = build(asked), build_table(asked)
    engine = built.pool.engine
    if tight:
        longest = int((table.prompt_tokens + table.output_tokens).max())
        pages = engine.kv_layout.pages(longest, engine.block_size)
        engine = replace(engine, replica_blocks=1 + pages)
    check_audited_jumps(table, replace(built.pool, engine=engine))
