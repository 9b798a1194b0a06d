"""Kernel times of Vidur's public profiling, as operator shapes and seconds.

Files of microsoft/vidur ``data/profiling`` (MIT): ``compute/GPU/*/*/mlp.csv[.gz]``, the older
``attention.csv[.gz]`` and ``network/NODE/all_reduce.csv[.gz]``. Times there are in ms, for one call
on one GPU with 16-bit numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from costmodels.tables.kinds import KINDS, TableKind
from costmodels.tables.table import OperatorTable, TableMeta, operator_table
from costmodels.work import Array
from sim.errors import TraceError

GEMMS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
ELEMENTWISE = (
    "emb",
    "input_layernorm",
    "attn_rope",
    "post_attention_layernorm",
    "mlp_act",
    "add",
)
_BYTES = 2  # of a number


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredOperator:
    """One operator of the profiles: shape columns of ``kind`` and ``seconds``, ``[n]`` each."""

    name: str
    kind: TableKind
    columns: dict[str, Array]
    """One row a shape: repeats are their median."""

    @property
    def seconds(self) -> Array:
        """Return the measured seconds, ``[n]``."""
        return self.columns["seconds"]

    @property
    def is_held_out(self) -> NDArray[np.bool_]:
        """Half of the shapes, by the SHA-256 of their text: the same shape is on one side only."""
        names = KINDS[self.kind].shape
        rows = zip(*(self.columns[name].astype(np.int64).tolist() for name in names), strict=True)
        texts = (" ".join([self.kind, *map(str, row)]) for row in rows)
        return np.array([hashlib.sha256(text.encode()).hexdigest()[0] >= "8" for text in texts])

    def where(self, chosen: NDArray[np.bool_]) -> MeasuredOperator:
        """Return the operator with only the chosen rows."""
        return replace(self, columns={name: col[chosen] for name, col in self.columns.items()})


def read_mlp(path: Path) -> list[MeasuredOperator]:
    """The GEMMs and elementwise operators of one model, all tensor-parallel sizes."""
    frame = _read(path)
    ranks = frame["num_tensor_parallel_workers"]
    hidden = frame["n_embd"]
    q_size = hidden // ranks
    kv_size = hidden // frame["n_head"] * frame["n_kv_head"] // ranks
    width = frame["n_expanded_embd"] // ranks
    # A gated FFN has two input matrices.
    inputs = 1 + frame["use_gated_mlp"].astype(np.int64)
    # Outer and inner size of each weight.
    weights = {
        "attn_pre_proj": (q_size + 2 * kv_size, hidden),
        "attn_post_proj": (hidden, q_size),
        "mlp_up_proj": (inputs * width, hidden),
        "mlp_down_proj": (hidden, width),
    }
    # Numbers read and written a row.
    numbers = {
        "emb": 2 * hidden,
        "input_layernorm": 2 * hidden,
        "attn_rope": 2 * (q_size + kv_size),
        "post_attention_layernorm": 2 * hidden,
        "mlp_act": (inputs + 1) * width,
        "add": 3 * hidden,
    }
    rows = frame["num_tokens"]
    found = [
        _operator(name, "gemm", frame, {"n": outer, "k": inner, "m": rows})
        for name, (outer, inner) in weights.items()
    ]
    return found + [
        _operator(name, "elementwise", frame, {"bytes_per_row": _BYTES * count, "rows": rows})
        for name, count in numbers.items()
    ]


def read_attention(path: Path) -> list[MeasuredOperator]:
    """Prefill (one prompt, on a cached prefix) and decode (equal contexts)."""
    frame = _read(path)
    ranks = frame["num_tensor_parallel_workers"]
    heads = {
        "head_dim": frame["n_embd"] // frame["n_q_head"],
        "window": 0 * ranks,
        "q_heads": frame["n_q_head"] // ranks,
        "kv_heads": frame["n_kv_head"] // ranks,
        "seqs": frame["batch_size"],
    }
    decode = heads | {"context_tokens": frame["kv_cache_size"] + 1}
    prefill = heads | {
        "new_tokens": frame["prefill_chunk_size"],
        "prefix_tokens": frame["kv_cache_size"],
    }
    is_prefill = frame["is_prefill"].to_numpy(np.bool_)
    return [
        _operator("attn_prefill", "prefill_attention", frame[is_prefill], prefill),
        _operator("attn_decode", "decode_attention", frame[~is_prefill], decode),
    ]


def read_all_reduce(path: Path) -> MeasuredOperator:
    """All-reduce within one node, the median over its ranks and repeats."""
    frame = _read(path)
    frame = frame[frame["num_workers"] == frame["devices_per_node"]]
    return _operator(
        "all_reduce", "all_reduce", frame, {"ranks": frame["num_workers"], "bytes": frame["size"]}
    )


def merged(operators: Iterable[MeasuredOperator]) -> list[MeasuredOperator]:
    """One operator a name, of all models together."""
    by_name: dict[str, list[MeasuredOperator]] = {}
    for operator in operators:
        by_name.setdefault(operator.name, []).append(operator)
    return [_joined(name, group) for name, group in by_name.items()]


def vidur_table(operators: list[MeasuredOperator], gpu: str, file: str) -> OperatorTable:
    """One table of ``operators`` (of one kind). ``file`` is where they lie in the repository."""
    joined = _joined("all", operators)
    meta = TableMeta(
        kind=joined.kind,
        gpu=gpu,
        engine="sarathi-serve",
        engine_version="unknown",
        kernel="torch, FlashAttention 2, NCCL",
        date="unknown",
        attribution=f"microsoft/vidur (c) Microsoft Corporation, {file}",
        licence="MIT",
    )
    return operator_table(meta, joined.columns)


def _joined(name: str, group: list[MeasuredOperator]) -> MeasuredOperator:
    frame = pd.concat([pd.DataFrame(operator.columns) for operator in group])
    return MeasuredOperator(name=name, kind=group[0].kind, columns=_medians(frame, group[0].kind))


def _operator(
    name: str, kind: TableKind, frame: pd.DataFrame, shape: dict[str, pd.Series]
) -> MeasuredOperator:
    columns = pd.DataFrame({column: values.loc[frame.index] for column, values in shape.items()})
    columns = columns.assign(seconds=frame[f"time_stats.{name}.median"] * 1e-3)
    # Times are multiples of 1 us; the fastest kernels read 0 there.
    columns = columns[columns["seconds"] > 0]
    return MeasuredOperator(name=name, kind=kind, columns=_medians(columns, kind))


def _medians(frame: pd.DataFrame, kind: TableKind) -> dict[str, Array]:
    once = frame.groupby(list(KINDS[kind].shape), as_index=False)["seconds"].median()
    return {str(name): once[name].to_numpy(np.float64) for name in once}


def _read(path: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: {error}") from error
