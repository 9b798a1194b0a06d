"""Measured serving points of AIConfigurator's package: closed loops on real GPUs.

``aiconfigurator_core/systems/silicon_sample.csv`` (Apache-2.0, NVIDIA CORPORATION & AFFILIATES) is
read from the installed package, and not copied into fleetcast: install the extra ``aic``. Times
there are in ms and, where AIConfigurator names the statistic, averages over requests.
"""

from __future__ import annotations

import csv
import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

from costmodels.tables.aic import SYSTEMS
from sim.errors import TraceError

_FILE = "systems/silicon_sample.csv"
_GPUS = {system: gpu for gpu, system in SYSTEMS.items()}
_CONCURRENCY = re.compile(r"silicon_concurrency=(\d+)")
# Where rows of InferenceX (formerly InferenceMAX) come from; two gap analyses repeat its rows, the
# others are AIConfigurator's own.
_INFERENCE_X = re.compile(
    r"source_file=\d{4}-\d\d-\d\d\.csv|db-dump/|source_file=(kimi|qwen3)[^/]*-gap-analysis\.csv"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiliconPoint:
    """One aggregated deployment under one closed loop, and what was measured there."""

    row_id: str
    model: str
    """Hugging Face id, as the file has it."""
    system: str
    """The package's name of the GPU; ``gpu`` is that of gpus.yaml."""
    gpu: str
    backend: str
    version: str
    """Engine version; empty: not given."""
    precision: str
    """fp8, fp4, int4 or bf16 (also where none is given)."""
    tp: int
    pp: int
    dp: int
    """Attention replicas that share the experts."""
    moe_tp: int
    ep: int
    gemm_mode: str
    """Quantisation of linear layers and of experts, in the package's words; empty: the model's."""
    moe_mode: str
    isl: int
    """Prompt tokens asked for; ``osl``: output tokens."""
    osl: int
    concurrency: int
    """Requests in flight, over all of the deployment."""
    is_inference_x: bool
    is_dynamo: bool
    """Whether Dynamo's front end and router stand before the engine, and its load tool sends: its
    sweeps have prompts of thousands of tokens, the others of powers of two."""
    ttft_s: float
    tpot_s: float

    @property
    def family(self) -> str:
        """Model, GPU, backend and precision: what a family of points has in common."""
        return f"{self.model}|{self.system}|{self.backend}|{self.precision}"

    @property
    def is_held_out(self) -> bool:
        """Half of the points, by the SHA-256 of the row's id."""
        return _upper_half(self.row_id)

    @property
    def is_family_held_out(self) -> bool:
        """Half of the families, by the SHA-256 of the family's name."""
        return _upper_half(self.family)


def read_silicon_points(backend: str | None = None) -> tuple[list[SiliconPoint], dict[str, int]]:
    """The file's aggregated points of ``backend`` (None: all), and skipped rows by reason.

    Raises `TraceError` if the package is not installed, or a row has no number where one is needed
    (with file and line).
    """
    points, skipped = [], Counter[str]()
    with _file().open("r", encoding="utf-8") as lines:
        for number, row in enumerate(csv.DictReader(lines), start=2):
            reason = _skip_reason(row, backend)
            if reason:
                skipped[reason] += 1
                continue
            try:
                points.append(_point(row))
            except (KeyError, TypeError, ValueError) as error:
                raise TraceError(f"aiconfigurator_core/{_FILE}, line {number}: {error}") from None
    return points, dict(skipped)


def model_config(name: str) -> Traversable:
    """The package's ``config.json`` of a Hugging Face id. Raises `TraceError` if it has none."""
    path = _package() / f"model_configs/{name.replace('/', '--')}_config.json"
    if not path.is_file():
        raise TraceError(f"aiconfigurator-core has no config.json of {name}")
    return path


def _package() -> Traversable:
    try:
        return resources.files("aiconfigurator_core")
    except ModuleNotFoundError:
        raise TraceError(
            "measured serving points of AIConfigurator need the package aiconfigurator-core: "
            "pip install 'fleetcast[aic]'"
        ) from None


def _file() -> Traversable:
    path = _package() / _FILE
    if not path.is_file():
        raise TraceError(f"this version of aiconfigurator-core has no {_FILE}")
    return path


def _skip_reason(row: Mapping[str, str], backend: str | None) -> str:
    """Why a row is not a point; empty if it is."""
    if backend is not None and row["backend"] != backend:
        return "another backend"
    if row["mode"] != "agg":
        return f"mode {row['mode']}"
    if row["system"] not in _GPUS:
        return f"no GPU of that name: {row['system']}"
    if not row["silicon_ttft_ms"] or not row["silicon_tpot_ms"]:
        return "no TTFT or no TPOT"
    return ""


def _point(row: Mapping[str, str]) -> SiliconPoint:
    tp, moe_tp, ep = (_count(row[f"{name}_size"]) for name in ("tp", "moe_tp", "moe_ep"))
    # Where it is not given, it is what ranks of experts there are for one of attention.
    dp = _count(row["attention_dp_size"] or str(max(1, moe_tp * ep // tp)))
    isl = _count(row["isl"])
    asked = _CONCURRENCY.search(row["silicon_data_source"])
    return SiliconPoint(
        row_id=row["id"],
        model=row["model_path"],
        system=row["system"],
        gpu=_GPUS[row["system"]],
        backend=row["backend"],
        version=row["backend_version"],
        precision=row["precision"] or "bf16",
        tp=tp,
        pp=_count(row["pp_size"]),
        dp=dp,
        moe_tp=moe_tp,
        ep=ep,
        gemm_mode=row["gemm_quant_mode"],
        moe_mode=row["moe_quant_mode"],
        isl=isl,
        osl=_count(row["osl"]),
        concurrency=int(asked[1]) if asked else _count(row["batch_size"]) * dp,
        is_dynamo="dynamo_version=" in row["silicon_data_source"] or isl % 1000 == 0,
        is_inference_x=bool(_INFERENCE_X.match(row["silicon_data_source"])),
        ttft_s=_seconds(row["silicon_ttft_ms"]),
        tpot_s=_seconds(row["silicon_tpot_ms"]),
    )


def _count(text: str) -> int:
    """A positive integer; of a dense model the file has 0 or nothing as ranks of experts."""
    return max(1, int(float(text or 1)))


def _seconds(text: str) -> float:
    seconds = float(text) * 1e-3
    if not 0 < seconds < math.inf:
        raise ValueError(f"a time must be above 0 ms, not {text}")
    return seconds


def _upper_half(text: str) -> bool:
    return hashlib.sha256(text.encode()).hexdigest()[0] in "89abcdef"
