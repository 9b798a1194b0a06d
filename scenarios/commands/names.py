"""``fleetcast list`` and ``fleetcast schema``: the names and fields of scenarios."""

from __future__ import annotations

import json
import textwrap
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scenarios.commands.app import check_format

if TYPE_CHECKING:
    from pydantic import BaseModel

    from costmodels.models.spec import ModelSpec


def list_names(
    what: Annotated[
        str,
        typer.Argument(
            help="models, gpus, policies, presets, quantization, formats, profiles, drafters."
        ),
    ],
    output_format: Annotated[
        str, typer.Option("--format", help="text, or for models json.", callback=check_format)
    ] = "text",
) -> None:
    """List what a scenario can name."""
    from scenarios.files.messages import nearest
    from sim.errors import ScenarioError

    if output_format == "json":
        if what != "models":
            raise typer.BadParameter("json is for models", param_hint="--format")
        print(json.dumps(model_rows(), indent=1))
        return
    printers = {
        "models": _print_models,
        "gpus": _print_gpus,
        "policies": _print_policies,
        "presets": _print_presets,
        "formats": _print_formats,
        "quantization": _print_quantization,
        "profiles": _print_profiles,
        "drafters": _print_drafters,
    }
    if what not in printers:
        raise ScenarioError(f"cannot list {what!r}; {nearest(what, printers)}")
    printers[what]()


def schema(
    what: Annotated[str, typer.Argument(help="scenario or plan: which file.")] = "scenario",
) -> None:
    """Print the JSON Schema of scenario files, or of plans, for editors and generators."""
    from scenarios.files.messages import nearest
    from scenarios.schema import Scenario
    from scenarios.schema.plan import PlanFile
    from sim.errors import ScenarioError

    kinds: dict[str, type[BaseModel]] = {"scenario": Scenario, "plan": PlanFile}
    if what not in kinds:
        raise ScenarioError(f"no schema of {what!r}; {nearest(what, kinds)}")
    print(json.dumps(kinds[what].model_json_schema(), indent=1))


def _print_models() -> None:
    from costmodels.models.catalog import model_names
    from costmodels.models.published import checkpoints

    for row in model_rows():
        size = f"{row['total_params'] / 1e9:.1f}B"
        if row["active_params"] < row["total_params"]:
            size += f" ({row['active_params'] / 1e9:.1f}B active)"
        line = f"{row['name']:45} {size:24} {row['growing_state_bytes_per_token']:>10,} bytes/token"
        if row["fixed_state_bytes_per_sequence"]:
            line += f" + {row['fixed_state_bytes_per_sequence'] / 1e6:,.1f} MB/sequence"
        print(line)
    further = len(checkpoints()) - len(model_names())
    print(
        f"\n{further} further checkpoints are known by their Hugging Face id; quantized variants "
        "and fine-tunes of all by what their names say."
    )


def _print_gpus() -> None:
    from costmodels.hardware.gpus import gpu_names, load_gpu

    for name in gpu_names():
        gpu = load_gpu(name)
        print(
            f"{name:28} {gpu.bf16_flop_per_s / 1e12:7,.0f} TFLOP/s bf16 "
            f"{gpu.hbm_bytes / 1e9:7,.1f} GB {gpu.hbm_bytes_per_s / 1e9:7,.0f} GB/s"
        )


def _print_policies() -> None:
    from policies import ADMISSIONS, AUTOSCALERS, EVICTIONS, ROUTERS, SCHEDULERS
    from scenarios.build.plugins import load_attribute
    from scenarios.build.policy_checks import option_text

    kinds = {
        "scheduler": SCHEDULERS,
        "router": ROUTERS,
        "admission": ADMISSIONS,
        "autoscaler": AUTOSCALERS,
        "eviction": EVICTIONS,
    }
    for kind, names in kinds.items():
        for name, target in names.items():
            options = option_text(load_attribute(target))
            print(f"{kind:10} {name:16} {target:46} {options}".rstrip())


def _print_presets() -> None:
    from workloads.generator.presets import preset_description, preset_names

    for name in preset_names():
        text = textwrap.wrap(preset_description(name), 78)
        for label, line in zip_longest([name], text, fillvalue=""):
            print(f"{label:32} {line}")


def _print_drafters() -> None:
    from costmodels.models.drafters import METHODS, method_facts

    for name in METHODS:
        facts = method_facts(name)
        rates = ", ".join(f"{rank[0]:g}" for rank in facts.acceptance)
        lines = [
            f"{facts.title}; {facts.drafts} drafts",
            f"acceptance {rates} ({facts.evidence.label}): {facts.evidence.source}",
            f"keeps the target's distribution: {facts.keeps_target} ({facts.keeps_source})",
        ]
        text = [line for long in lines for line in textwrap.wrap(long, 84)]
        for label, line in zip_longest([name], text, fillvalue=""):
            print(f"{label:12} {line}")


def _print_formats() -> None:
    from workloads.readers.detect import FORMATS

    for name, known in FORMATS.items():
        print(f"{name:16} {known.description}")


def _print_quantization() -> None:
    from costmodels.formats import load_format
    from costmodels.models.quantization import load_method, method_names

    for section, field in (("weights", "engine.quantization"), ("cache", "kv.cache_dtype")):
        for name in method_names(section):
            method = load_method(name, section)
            stored = load_format(method.weights or method.kv)
            print(f"{field:20} {name:20} {float(stored.bits_per_element):5.4g} bits  {method.what}")
            if method.fallback:
                print(f"{'':41} without the unit: {method.fallback_text}")
            effects = [f"{found.effect} ({found.source})" for found in method.quality]
            for text in effects or ["not known here"]:
                print(f"{'':41} answers: {text}")


def _print_profiles() -> None:
    from costmodels.engines.profile import load_profile, profile_names

    for name in profile_names():
        profile = load_profile(name)
        print(f"{name:32} {profile.engine} {profile.version}")


# Formats that weights are commonly served in, beside the checkpoint's own.
_FORMATS = ("bfloat16", "fp8", "int4_g128", "mxfp4", "nvfp4")
_LABELS = {"V": "reported", "R": "assumed"}


def model_rows() -> list[dict[str, Any]]:
    """Return one row per built-in model; bytes are those of the whole model, unsharded.

    ``weight_bytes`` counts the layers' matrices in each format with the rest in 16 bits, and
    ``checkpoint`` as published. State bytes are those of a bf16 cache with recurrent states in
    fp32.
    """
    from costmodels.models.catalog import load_model, model_names

    return [_row(load_model(name)) for name in model_names()]


def _row(model: ModelSpec) -> dict[str, Any]:
    from costmodels.models.spec import quantized

    kinds: dict[str, int] = {}
    for mixer, count in model.mixers:
        kinds[mixer.kind] = kinds.get(mixer.kind, 0) + count
    growing = model.growing_state_bytes_per_token
    return {
        "name": model.name,
        "layers": kinds,
        "total_params": model.total_params,
        "active_params": model.active_params,
        "weight_bytes": {
            "checkpoint": model.weight_bytes,
            **{name: quantized(model, linear=name).weight_bytes for name in _FORMATS},
        },
        "growing_state_bytes_per_token": int(growing)
        if growing.denominator == 1
        else float(growing),
        "fixed_state_bytes_per_sequence": model.fixed_state_bytes_per_sequence,
        "evidence": {
            "label": _LABELS[model.confidence[0]],
            "confidence": model.confidence,
            "source": model.source,
        },
    }
