"""Operator tables from AIConfigurator's measurements, read from the installed package.

``aiconfigurator-core`` (Apache-2.0, NVIDIA CORPORATION & AFFILIATES) carries one parquet file per
operator, engine and version. Nothing of it is copied into fleetcast: install the extra ``aic``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata, resources
from importlib.resources.abc import Traversable

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import yaml

from costmodels.hardware.gpus import load_gpu
from costmodels.tables.kinds import KINDS, Precision, TableKind
from costmodels.tables.table import OperatorTable, TableMeta, operator_table
from sim.errors import ScenarioError

# Quantization mode -> formats of activations and of weights (sdk/common.py, GEMMQuantMode).
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
    """Where one kind lies in the package, and how its rows are read."""

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


SYSTEMS = {
    "A100-SXM-80GB": "a100_sxm",
    "H100-SXM": "h100_sxm",
    "H200-SXM": "h200_sxm",
    "B200": "b200_sxm",
    "B300": "b300_sxm",
    "GB200": "gb200",
    "GB300": "gb300",
    "L40S": "l40s",
}
"""GPUs of gpus.yaml, with the package's names for them."""
BACKENDS = ("vllm", "sglang", "trtllm")
AIC_KINDS: tuple[TableKind, ...] = tuple(LAYOUTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class AicChoice:
    """Which of the package's measurements to read; every default is the package's own."""

    backend: str = "vllm"
    version: str | None = None
    """Engine version; None: the one the package calls current. An operator not measured for it
    is taken from the newest older version, as the package does."""
    gemm_mode: str = "bfloat16"
    """Quantization of linear layers, in the package's words: a key of `MODES`."""
    moe_mode: str | None = None
    """Quantization of experts, a key of `MODES`; None: as ``gemm_mode``."""
    attention: str = "bfloat16"
    """Format that attention is computed in: bfloat16 or fp8."""
    kv: str = "bfloat16"
    """Format of the KV cache: bfloat16 or fp8."""
    workload: str = "power_law_1.2"
    """How uneven routing is: power_law_1.2 (the package's for generic MoE models),
    power_law_1.01 (the package's for DeepSeek-like ones) or balanced (exactly equal tokens for
    each expert)."""
    launch: str = "graph"
    """Custom all-reduce captured in a CUDA graph (``graph``), or launched (``eager``)."""
    attention_kernel: str | None = None
    """Attention kernel to prefer if several were measured; None: the best covered one."""


def aic_tables(
    gpu: str, choice: AicChoice | None = None, kinds: Sequence[TableKind] = AIC_KINDS
) -> dict[TableKind, OperatorTable]:
    """Return the package's tables of ``kinds`` for ``gpu`` (a name of gpus.yaml).

    Raises `ScenarioError` if the package is not installed, or has no data for this GPU, backend,
    version, mode or workload (the message lists those that it has).
    """
    return {kind: _aic_table(kind, gpu, choice or AicChoice()) for kind in kinds}


def check_package(gpu: str) -> str:
    """Return the GPU's name. Raises `ScenarioError` if the package is missing or has nothing for
    it."""
    name = load_gpu(gpu).name
    if name not in SYSTEMS:
        raise ScenarioError(
            f"aiconfigurator-core has no operators of {name}; it has {', '.join(SYSTEMS)}"
        )
    _package()
    return name


@lru_cache(maxsize=16)
def _aic_table(kind: TableKind, gpu: str, choice: AicChoice) -> OperatorTable:
    name = check_package(gpu)
    if choice.backend not in BACKENDS:
        raise ScenarioError(f"backend {choice.backend!r} is not one of {', '.join(BACKENDS)}")
    package = _package()
    layout = LAYOUTS[kind]
    system = f"systems/data/{SYSTEMS[name]}"
    version = _measured_version(package, system, layout, choice)
    path = f"{system}/{layout.folder}/{choice.backend}/{version}/{layout.file}"
    with resources.as_file(package / path) as file:
        frame = pq.read_table(file).to_pandas()
    precision, frame = _of_precision(frame, layout, choice, path)
    wanted = {"distribution": choice.workload, "backend": f"{choice.backend}_{choice.launch}"}
    for column in wanted.keys() & set(frame):
        frame = _only(frame, column, wanted[column], path)
    shape = layout.shape(frame)
    shape = shape.assign(seconds=frame["latency"] * 1e-3, kernel=frame["kernel_source"])
    shape, kernels = _one_time_per_shape(shape, list(KINDS[kind].shape), choice.attention_kernel)
    about = f"aiconfigurator-core {metadata.version('aiconfigurator-core')}"
    meta = TableMeta(
        kind=kind,
        gpu=name,
        engine=choice.backend,
        engine_version=version,
        kernel=" + ".join(kernels),
        precision=precision,
        variant=choice.workload if kind == "grouped_gemm" else "",
        date="unknown",
        attribution=f"{about} (Apache-2.0, NVIDIA CORPORATION & AFFILIATES), {path}",
        licence="Apache-2.0",
    )
    columns = {str(column): shape[column].to_numpy(np.float64) for column in shape}
    return operator_table(meta, columns)


def _package() -> Traversable:
    try:
        return resources.files("aiconfigurator_core")
    except ModuleNotFoundError:
        raise ScenarioError(
            "operator tables of AIConfigurator need the package aiconfigurator-core: "
            "pip install 'fleetcast[aic]'"
        ) from None


def _measured_version(
    package: Traversable, system: str, layout: AicLayout, choice: AicChoice
) -> str:
    """Return the newest version with this operator that is not newer than the one asked for."""
    wanted = choice.version or _current_version(package, system, choice.backend)
    folder = package / system / layout.folder / choice.backend
    versions = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    measured = [v for v in versions if (folder / v / layout.file).is_file()]
    usable = [v for v in measured if _order(v) <= _order(wanted)]
    if not usable:
        raise ScenarioError(
            f"aiconfigurator-core has no {layout.file} for {choice.backend} up to {wanted} in "
            f"{system}; it has {', '.join(sorted(measured, key=_order)) or 'none at all'}"
        )
    return max(usable, key=_order)


def _current_version(package: Traversable, system: str, backend: str) -> str:
    slots = yaml.safe_load((package / "systems/query_versions.yaml").read_text(encoding="utf-8"))
    override = slots["overrides"].get(system.rsplit("/", 1)[1], {})
    return str(override.get(backend, slots["defaults"][backend])["current"])


def _order(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _of_precision(
    frame: pd.DataFrame, layout: AicLayout, choice: AicChoice, path: str
) -> tuple[Precision, pd.DataFrame]:
    wanted = {
        "gemm_dtype": choice.gemm_mode,
        "moe_dtype": choice.moe_mode or choice.gemm_mode,
        "attn_dtype": choice.attention,
        "kv_cache_dtype": choice.kv,
        "allreduce_dtype": "bfloat16",
    }
    for column in layout.formats:
        frame = _only(frame, column, wanted[column], path)
    formats = {column: wanted[column] for column in layout.formats}
    mode = formats.get("gemm_dtype") or formats.get("moe_dtype") or "bfloat16"
    if mode not in MODES:
        raise ScenarioError(f"mode {mode!r} of {path} is not known; known: {', '.join(MODES)}")
    activations, weights = MODES[mode]
    if "attn_dtype" in formats:
        # Decode attention with an fp8 cache still multiplies in the format of attn_dtype.
        activations = weights = formats["attn_dtype"]
    kv = formats.get("kv_cache_dtype", "bfloat16")
    return Precision(activations=activations, weights=weights, kv=kv), frame


def _only(frame: pd.DataFrame, column: str, value: str, path: str) -> pd.DataFrame:
    chosen = frame[frame[column] == value]
    if chosen.empty:
        known = ", ".join(sorted(frame[column].unique()))
        raise ScenarioError(f"aiconfigurator-core {path}: no {column} {value!r}; it has {known}")
    return chosen


def _one_time_per_shape(
    frame: pd.DataFrame, keys: list[str], preferred: str | None
) -> tuple[pd.DataFrame, list[str]]:
    """Return the median of repeats; if kernels compete, that of the preferred or the best
    covered one."""
    rows = frame["kernel"].value_counts()
    order = sorted(rows.index, key=lambda kernel: (kernel != preferred, -rows[kernel], kernel))
    ranks = {kernel: place for place, kernel in enumerate(order)}
    medians = frame.groupby([*keys, "kernel"], as_index=False)["seconds"].median()
    medians = medians.assign(rank=medians["kernel"].map(ranks)).sort_values([*keys, "rank"])
    first = medians.drop_duplicates(keys)
    return first[[*keys, "seconds"]], [kernel for kernel in order if kernel in set(first["kernel"])]
