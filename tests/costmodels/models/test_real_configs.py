"""Config files as published, read from the installed ``aiconfigurator-core`` (extra ``aic``)."""

from __future__ import annotations

import re
import shutil
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

import pytest

from costmodels.models.catalog import load_model, model_names
from costmodels.models.hf_config import read_hf_config

pytestmark = pytest.mark.skipif(
    find_spec("aiconfigurator_core") is None, reason="fleetcast[aic] is not installed"
)
_QUANT = "_hf_quant_config.json"
_SIZE = re.compile(r"-(\d+(?:\.\d+)?)B\b")
# What the name's number does not count, or counts otherwise: active parameters; 8 experts' sum.
_OTHER_NUMBER = ("Llama-4", "Mixtral", "Qwen3-VL-2B")


def published(folder: Path) -> dict[str, Path]:
    """A folder with the files of each model, by its name."""
    source = resources.files("aiconfigurator_core") / "model_configs"
    found = {}
    for file in source.iterdir():
        if not file.name.endswith("_config.json") or file.name.endswith(_QUANT):
            continue
        name = file.name.removesuffix("_config.json").replace("--", "/")
        place = folder / name
        place.mkdir(parents=True)
        (place / "config.json").write_text(file.read_text(encoding="utf-8"))
        quant = source / file.name.replace("_config.json", _QUANT)
        if quant.is_file():
            (place / "hf_quant_config.json").write_text(quant.read_text(encoding="utf-8"))
        found[name] = place
    return found


def test_published_files_load(tmp_path: Path) -> None:
    places = published(tmp_path)
    models = {name: read_hf_config(place, name=name) for name, place in places.items()}
    for name, model in models.items():
        size = _SIZE.search(name)
        if size and not any(part in name for part in _OTHER_NUMBER):
            assert model.total_params / 1e9 == pytest.approx(float(size.group(1)), rel=0.07), name
        if "FP8" in name or "NVFP4" in name:
            assert model.weight_bytes < 1.1 * model.total_params, name
    print(f"\n{len(models)} of {len(places)} published files load")


def test_built_in_models_are_as_published(tmp_path: Path) -> None:
    places = published(tmp_path)
    shared = [name for name in model_names() if name in places]
    assert len(shared) > 15
    for name in shared:
        built_in, file = load_model(name), read_hf_config(places[name], name=name)
        assert built_in.layers == file.layers, name
        assert built_in.total_params == file.total_params, name
        assert built_in.growing_state_bytes_per_token == file.growing_state_bytes_per_token, name
        stored, as_file = built_in.precision, file.precision
        assert (stored.attention, stored.ffn) in (
            (as_file.attention, as_file.ffn),
            # Built-in rows are of the 16-bit shape where a checkpoint's own format is not stated.
            ("bfloat16", "bfloat16"),
        ), name
    shutil.rmtree(tmp_path)
