"""Methods of quantization that a scenario may name: formats, fall-backs, reported quality."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from costmodels.datafile import find_name, read_data
from costmodels.formats import BF16_PEAK, ModelPrecision, load_format
from costmodels.hardware.gemm_paths import cache_path, format_path
from costmodels.hardware.gpus import GpuSpec
from costmodels.hardware.kernel_curves import core_instructions_per_s
from costmodels.models.spec import ModelSpec
from sim.errors import ScenarioError

_FILE = "models/quantization.yaml"
_LATENT = {"mla", "dsa", "compressed"}
AUTO = "auto"


class Quality(NamedTuple):
    """A method's effect on answers, as others report it."""

    effect: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A row of ``quantization.yaml``."""

    name: str
    weights: str = ""
    """Format of the weights in ``formats.yaml``, ``kv`` that of the cache; empty: not changed."""
    kv: str = ""
    in_vllm: bool
    dense: bool = False
    """Whether its kernels are only for dense layers."""
    latent: bool = False
    """Whether it is only for latent attention."""
    what: str
    fallback: str = ""
    """The format on devices without the unit; empty: there is none."""
    fallback_text: str = ""
    quality: tuple[Quality, ...] = ()


@cache
def load_method(name: str, section: str = "weights") -> Method:
    """Return a method of ``weights`` or ``cache``. Raises `ScenarioError` for an unknown name."""
    rows = read_data(_FILE)[section]
    row = dict(rows[find_name("quantisation", name, {known: known for known in rows})])
    without = row.pop("without_unit", {})
    quality = tuple(Quality(**found) for found in row.pop("quality"))
    return Method(
        name=name,
        fallback=without.get("weights", ""),
        fallback_text=without.get("as", ""),
        quality=quality,
        **row,
    )


def method_names(section: str = "weights") -> list[str]:
    """Return the names of all methods."""
    return list(read_data(_FILE)[section])


class QuantizedModel(NamedTuple):
    """A model in the formats it is served in."""

    model: ModelSpec
    notes: tuple[str, ...]
    """Decisions made for the user, in plain words."""


def quantize(
    model: ModelSpec, gpu: GpuSpec, *, weights: str | None = None, cache_dtype: str = AUTO
) -> QuantizedModel:
    """Return the model with its matrices and cache as the methods store them, on this device.

    ``weights`` None and ``cache_dtype`` auto leave the checkpoint's formats. Raises `ScenarioError`
    for methods that cannot be combined, and if the device or the model has no such kernels.
    """
    precision, notes = model.precision, list[str]()
    if weights and _is_stored_so(model, load_method(weights)):
        notes.append(
            f"the checkpoint is in {model.linear_dtype} already: engine.quantization {weights} "
            "leaves it as it is"
        )
        weights = None
    chosen = [load_method(weights)] if weights else []
    if weights:
        method = chosen[0]
        if method.dense and model.num_experts:
            raise ScenarioError(
                f"engine.quantization {weights}: its kernels are of dense layers, and {model.name} "
                f"has experts; others: {', '.join(_others())}"
            )
        stored = _on_device(method, gpu, notes)
        precision = replace(precision.with_matrices(stored), activations=None)
        if method.kv:
            cache_dtype = _own_cache(method, cache_dtype, notes)
    else:
        precision = _checkpoint_on_device(model, gpu, notes)
    if cache_dtype != AUTO:
        cache = load_method(cache_dtype, "cache")
        chosen += [] if weights and chosen[0].kv else [cache]
        _check_cache(cache, model)
        precision = replace(precision, kv=cache.kv)
    for method in chosen:
        if not method.in_vllm:
            notes.append(
                f"{method.name} is no option of vLLM: its scheduler is simulated with kernels as "
                f"described ({method.what})"
            )
    served = replace(model, precision=precision)
    return QuantizedModel(served, (*notes, *_unpacking_notes(served, gpu)))


def _others() -> list[str]:
    return [name for name in method_names() if not load_method(name).dense]


def _on_device(method: Method, gpu: GpuSpec, notes: list[str]) -> str:
    """Return the format of a method's weights on this device; a fall-back adds a note."""
    stored = load_format(method.weights)
    peak = load_format(stored.input).peak if stored.input else BF16_PEAK
    if getattr(gpu, peak) is not None:
        return method.weights
    unit = peak.partition("_")[0]
    if not method.fallback:
        raise ScenarioError(
            f"engine.quantization {method.name}: {gpu.name} has no known {unit} unit, and there is "
            "no other way to multiply such weights"
        )
    notes.append(f"{gpu.name} has no {unit} unit: {method.name} is {method.fallback_text}")
    return method.fallback


def _is_stored_so(model: ModelSpec, method: Method) -> bool:
    """Return whether some of the checkpoint's matrices are in formats of the method's kind: then
    engines read what the checkpoint says of each."""
    precision = model.precision
    stored = {precision.attention, precision.ffn}
    stored |= {precision.experts} if model.num_experts else set()
    kind = method.weights.partition("_")[0]
    return not method.kv and any(name.partition("_")[0] == kind for name in stored)


def _checkpoint_on_device(model: ModelSpec, gpu: GpuSpec, notes: list[str]) -> ModelPrecision:
    """Return the checkpoint's formats; those without a unit on this device fall back as their
    method does, with a note."""
    precision = model.precision
    methods = {m.weights: m for m in map(load_method, method_names()) if m.fallback}
    for part in ("attention", "ffn", "experts"):
        stored = getattr(precision, part)
        unit = precision.matrix(stored)[1].peak
        if stored not in methods or getattr(gpu, unit) is not None:
            continue
        method = methods[stored]
        note = (
            f"{gpu.name} has no {unit.partition('_')[0]} unit: the checkpoint's {stored} is "
            f"{method.fallback_text}"
        )
        if note not in notes and (part != "experts" or model.num_experts):
            notes.append(note)
        precision = replace(precision, activations=None, **{part: method.fallback})
    return precision


def _own_cache(method: Method, cache_dtype: str, notes: list[str]) -> str:
    own = next(name for name in method_names("cache") if load_method(name, "cache").kv == method.kv)
    if cache_dtype not in (AUTO, own):
        raise ScenarioError(
            f"engine.quantization {method.name} has an {own} cache of its own, not kv.cache_dtype "
            f"{cache_dtype}"
        )
    if cache_dtype == AUTO:
        notes.append(f"keys and values are {own}: a part of {method.name}")
    return own


def _check_cache(cache: Method, model: ModelSpec) -> None:
    latent = {mixer.kind for mixer, _ in model.mixers} & _LATENT
    if cache.latent and not latent:
        raise ScenarioError(
            f"kv.cache_dtype {cache.name} is of latent attention, which {model.name} has not"
        )
    if latent and not cache.in_vllm:
        raise ScenarioError(
            f"kv.cache_dtype {cache.name}: no kernels of latent attention ({', '.join(latent)}) "
            "read such a cache; fp8 and fp8_ds_mla are read"
        )


def _unpacking_notes(model: ModelSpec, gpu: GpuSpec) -> list[str]:
    """Return notes on weights or caches whose unpacking has an unknown cost."""
    precision, notes = model.precision, list[str]()
    parts = [precision.attention, precision.ffn]
    parts += [precision.experts] if model.num_experts else []
    unpacked = [
        name
        for name in dict.fromkeys(parts)
        if load_format(name).bits < 16 and precision.matrix(name)[1].peak == BF16_PEAK
    ]
    unknown = [name for name in unpacked if format_path(name) is None]
    if unknown:
        notes.append(
            f"what unpacking {' and '.join(unknown)} weights takes is not known, and not counted: "
            "large batches may come out too fast"
        )
    paths = [format_path(name) for name in parts] + [cache_path(precision.kv)]
    if any(paths) and core_instructions_per_s(gpu) is None:
        notes.append(f"what unpacking costs on {gpu.name} is not known, and not counted")
    return notes
