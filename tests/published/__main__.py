"""Print our figures beside published ones, with conditions and errors: ``python -m
tests.published``."""

from __future__ import annotations

import sys

from tests.published import (
    beam_blocks,
    chunk_sizes,
    deepseek_day,
    distserve,
    flexgen,
    hydragen,
    kernels,
    kimi_k3,
    kimi_linear,
    mooncake_loading,
    mooncake_routing,
    orca,
    qserve,
    speculation,
    vllm_batches,
    yoco,
)
from tests.published.rows import print_section

MODULES = {
    "a1": yoco,
    "a3": hydragen,
    "b3": kimi_linear,
    "b4": kimi_k3,
    "b5": speculation,
    "b6": speculation,
    "b7": speculation,
    "b8": speculation,
    "b9": distserve,
    "b11": vllm_batches,
    "b11-beams": beam_blocks,
    "b12": orca,
    "b14-load": mooncake_loading,
    "b14": mooncake_routing,
    "b15": deepseek_day,
    "b16": kernels,
    "b18": qserve,
    "b19": flexgen,
    "b21": kernels,
    "chunks": chunk_sizes,
}


def main(names: list[str]) -> None:
    """Print the results named (keys of `MODULES`), or all."""
    unknown = [name for name in names if name.lower() not in MODULES]
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}; known: {', '.join(MODULES)}")
    for module in dict.fromkeys(MODULES[name.lower()] for name in names or MODULES):
        for section in module.sections():
            print_section(section)


if __name__ == "__main__":
    main(sys.argv[1:])
