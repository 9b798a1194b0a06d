"""How the columns of AIConfigurator's parquet files map to ours. Latencies there are in ms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from costmodels.operator_tables.kinds import TableKind

# Quantisation mode -> formats of activations and of weights (sdk/common.py, GEMMQuantMode).
MODES = {
    "bfloat16": ("bfloat16", "bfloat16"),
    "fp8": ("fp8", "fp8"),
    "fp8_block": ("fp8", "fp8_block"),
    "int8_wo": ("bfloat16", "int8"),
    "int4_wo": ("bfloat16", "int4"),
    "sq": ("int8", "int8"),
    "nvfp4": ("nvfp4", "nvfp4"),
    "w4afp8": ("fp8", "int4"),
    "w4a16_mxfp4": ("bfloat16", "mxfp4"),
    "w4a8_mxfp4_mxfp8": ("mxfp8", "mxfp4"),
}

_BFLOAT16_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class AicLayout:
    """Where one kind lies in the package and how its rows are read."""

    folder: str
    file: str
    formats: tuple[str, ...]
    """Columns that hold number formats."""
    shape: Callable[[pd.DataFrame], pd.DataFrame]


def _gemm(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[["m", "n", "k"]]


def _grouped_gemm(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "tokens": rows["num_tokens"],
            "hidden": rows["hidden_size"],
            "inter": rows["inter_size"],
            "top_k": rows["topk"],
            "num_experts": rows["num_experts"],
            "tp": rows["moe_tp_size"],
            "ep": rows["moe_ep_size"],
        }
    )


def _heads(rows: pd.DataFrame) -> dict[str, pd.Series]:
    # Early files have no windows.
    window = rows["window_size"] if "window_size" in rows else 0 * rows["head_dim"]
    return {
        "q_heads": rows["num_heads"],
        "kv_heads": rows["num_key_value_heads"],
        "head_dim": rows["head_dim"],
        "window": window,
        "seqs": rows["batch_size"],
    }


def _prefill_attention(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({**_heads(rows), "new_tokens": rows["isl"], "prefix_tokens": rows["step"]})


def _decode_attention(rows: pd.DataFrame) -> pd.DataFrame:
    # step: tokens in the cache; isl: the new one.
    return pd.DataFrame({**_heads(rows), "context_tokens": rows["step"] + rows["isl"]})


def _all_reduce(rows: pd.DataFrame) -> pd.DataFrame:
    # message_size counts elements: NCCL's 16-bit rows take twice the 8-bit rows' time.
    return pd.DataFrame(
        {"ranks": rows["num_gpus"], "bytes": _BFLOAT16_BYTES * rows["message_size"]}
    )


LAYOUTS: dict[TableKind, AicLayout] = {
    "gemm": AicLayout(
        folder="gemm", file="gemm_perf.parquet", formats=("gemm_dtype",), shape=_gemm
    ),
    "grouped_gemm": AicLayout(
        folder="moe", file="moe_perf.parquet", formats=("moe_dtype",), shape=_grouped_gemm
    ),
    "prefill_attention": AicLayout(
        folder="attention",
        file="context_attention_perf.parquet",
        formats=("attn_dtype", "kv_cache_dtype"),
        shape=_prefill_attention,
    ),
    "decode_attention": AicLayout(
        folder="attention",
        file="generation_attention_perf.parquet",
        formats=("attn_dtype", "kv_cache_dtype"),
        shape=_decode_attention,
    ),
    "all_reduce": AicLayout(
        folder="comm",
        file="custom_allreduce_perf.parquet",
        formats=("allreduce_dtype",),
        shape=_all_reduce,
    ),
}
