"""Read what lengthens the positions of a model: scaled rope, and overrides of its config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scenarios.server_flags.values import NotPriced, Settings, json_object

_UNSCALED = ("default", "su", "longrope", "llama3", "mrope", "proportional")
"""Kinds of rope scaling with which vLLM does not lengthen a model's positions by ``factor``."""
_ROPE = ("rope_scaling", "rope_parameters", "rope_theta")
_POSITIONS = ("max_position_embeddings", "model_max_length", "max_sequence_length")
_SAME_WORK = ("num_nextn_predict_layers", "architectures")


def rope_positions(text: str, settings: Settings) -> int | None:
    """Return the positions of a model whose rope is scaled; None where they stay.

    YaRN lengthens ``original_max_position_embeddings`` by its factor, as vLLM computes it, and
    other kinds the model's own positions.
    """
    return _scaled(json_object(text), None, settings)


def overridden_positions(text: str, settings: Settings) -> int | None:
    """Return the positions that overrides of a model's config leave it.

    Raises `NotPriced` for overrides that change the model itself.
    """
    config = json_object(text)
    inner = config.pop("text_config", None)
    config |= inner if isinstance(inner, dict) else {}
    others = [key for key in config if key not in (*_ROPE, *_POSITIONS, *_SAME_WORK)]
    if others:
        raise NotPriced(f"{', '.join(others)} would change the model: give its config.json changed")
    base = next((int(config[key]) for key in _POSITIONS if config.get(key)), None)
    rope = config.get("rope_scaling") or config.get("rope_parameters")
    return _scaled(rope, base, settings) if isinstance(rope, dict) else base


def _scaled(rope: Mapping[str, Any], base: int | None, settings: Settings) -> int | None:
    from costmodels.models.catalog import load_model

    parts: list[Mapping[str, Any]] = [part for part in rope.values() if isinstance(part, dict)]
    parts = parts or [rope]
    scaled = [p for p in parts if p.get("rope_type", p.get("type", "default")) not in _UNSCALED]
    if not scaled:
        return base
    kind = scaled[0].get("rope_type", scaled[0].get("type"))
    original = scaled[0].get("original_max_position_embeddings") if kind == "yarn" else None
    start = original or base or load_model(settings["model"]).max_position_embeddings
    return int(float(start) * float(scaled[0].get("factor") or 1))


def asked_positions(text: str, settings: Settings) -> int | None:
    """Return the positions of an engine told to take a longest sequence beyond the model's."""
    from costmodels.models.catalog import load_model

    asked = settings.get("engine.max_model_len")
    if text.lower() not in ("1", "true") or asked is None:
        return None
    return int(asked) if asked > load_model(settings["model"]).max_position_embeddings else None
