"""Finds a model by Hugging Face id or short alias in ``models.yaml``, or by its config file."""

from __future__ import annotations

from pathlib import Path

from costmodels.datafile import find_name, read_data
from costmodels.models.hf_config import read_hf_config
from costmodels.models.spec import ModelSpec
from sim.paths import is_file, is_folder


def model_names() -> list[str]:
    """Return the ids of the built-in models."""
    return list(read_data("models/models.yaml")["models"])


def load_model(name_or_path: str | Path) -> ModelSpec:
    """Return the spec of a built-in model, or of a ``config.json`` (or a folder holding one).

    Names are Hugging Face ids, their last part, or the aliases in ``models.yaml``; case does not
    matter. Raises `ScenarioError` for an unknown name (with near matches) or a bad config.
    """
    path = Path(name_or_path)
    if path.suffix == ".json" or (is_file(path) or is_folder(path)):
        return read_hf_config(path)
    rows = read_data("models/models.yaml")["models"]
    spellings: dict[str, str] = {}
    for model_id, row in rows.items():
        for spelling in (model_id, model_id.rpartition("/")[2], *row.get("aliases", ())):
            spellings[spelling] = model_id
    model_id = find_name("model", str(name_or_path), spellings)
    row = rows[model_id]
    return read_hf_config(
        row["config"], name=model_id, confidence=row["confidence"], source=row["source"]
    )
