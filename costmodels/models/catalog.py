"""Finds a model by its config file, its Hugging Face id, or what an id says of itself."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from costmodels.datafile import read_data
from costmodels.models.hf_config import read_hf_config
from costmodels.models.hub import HUB, config_from_hub
from costmodels.models.model_names import find_checkpoint, understand
from costmodels.models.published import BUILT_IN, checkpoints, in_form
from costmodels.models.spec import ModelSpec
from sim.errors import ScenarioError
from sim.paths import is_file, is_folder

_LONGEST_NAME = 400


def model_names() -> list[str]:
    """Return the ids of the built-in models: one or a few of each family."""
    return list(read_data(BUILT_IN)["models"])


def load_model(name_or_path: str | Path) -> ModelSpec:
    """Return the spec of a ``config.json`` (or a folder holding one), or of a model by its name.

    Names are Hugging Face ids, their last part, or the aliases in ``models.yaml``; case does not
    matter. An id that the tables do not have is read from the hub if ``huggingface_hub`` is
    installed and answers, else from its own words: ``notes`` of the spec says what was assumed.
    Raises `ScenarioError` for an unknown name (with near ones) or a bad config.
    """
    path = Path(name_or_path)
    if path.suffix == ".json" or (is_file(path) or is_folder(path)):
        return read_hf_config(path)
    return _by_name(str(name_or_path))


@cache
def _by_name(name: str) -> ModelSpec:
    if len(name) > _LONGEST_NAME:
        raise ScenarioError(f"unknown model {name[:_LONGEST_NAME]!r}...: no id is as long")
    model_id = find_checkpoint(name)
    if model_id is not None:
        return _published(model_id)
    file = config_from_hub(name)
    if file is not None:
        return read_hf_config(
            file, name=name, confidence="V", source=f"config.json of {HUB}/{name}"
        )
    try:
        found = understand(name)
    except ScenarioError as error:
        raise ScenarioError(f"{error}\n{_way_round(name)}") from None
    known = _published(found.model_id, found.form)
    return replace(known, name=name, notes=(found.note, *known.notes))


def _published(model_id: str, form: str | None = None) -> ModelSpec:
    row = checkpoints()[model_id]
    config = row.config if form is None else in_form(row.config, form)
    model = read_hf_config(config, name=model_id, confidence=row.confidence, source=row.source)
    caveat = (f"{model_id}: {row.caveat}",) if row.caveat else ()
    return replace(model, notes=(*caveat, *model.notes))


def _way_round(name: str) -> str:
    address = f"{HUB}/{name}/resolve/main/config.json" if name.count("/") == 1 else "its publisher"
    return (
        f"its config.json says all sizes: give that file's path as the model (from {address}), or "
        "install fleetcast[hub], which reads it from the hub"
    )
