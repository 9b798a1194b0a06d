"""The table of published checkpoints: their ids, and what their config.json says."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from costmodels.datafile import read_data

BUILT_IN = "models/models.yaml"
FOLDER = Path(__file__).with_name("published")
_OWN = ("ids", "billions", "more", "stored", "confidence", "source")
_TEXT = ("model_type",)
_CAVEAT = re.compile(r"\bread as\b|\bnot counted\b|\bleft out\b")
_MORE = re.compile(r"(\w+)=(\S+)")


class Published(NamedTuple):
    """A row: the config of a checkpoint, or of several alike."""

    config: Mapping[str, Any]
    confidence: str
    source: str
    aliases: tuple[str, ...] = ()
    billions: float | None = None
    """Published number of parameters of what the row describes, in billions."""

    @property
    def caveat(self) -> str:
        """What the row leaves out or reads otherwise, as its source says; empty: nothing."""
        says = (part for part in re.split(r"[;,] ", self.source) if _CAVEAT.search(part))
        return ", ".join(says)


@cache
def checkpoints() -> Mapping[str, Published]:
    """Return every known checkpoint by its id: the built-in models first, then the tables of
    ``published``."""
    found = {
        model_id: Published(
            row["config"], row["confidence"], row["source"], tuple(row.get("aliases", ()))
        )
        for model_id, row in read_data(BUILT_IN)["models"].items()
    }
    for path in sorted(FOLDER.glob("*.csv")):
        for ids, row in _rows(path):
            found |= {model_id: row for model_id in ids if model_id not in found}
    return found


def stored_form(name: str) -> Mapping[str, Any]:
    """Return a form of ``model_names.yaml``."""
    form: Mapping[str, Any] = read_data("models/model_names.yaml")["forms"][name]
    return form


def in_form(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a config with its weights stored in a form, whatever they were stored in."""
    form = stored_form(name)
    plain = {k: v for k, v in config.items() if k not in ("quantization_config", "expert_dtype")}
    stored = form["config"]
    if stored is None:
        return plain
    has_experts = any(plain.get(key) for key in ("num_experts", "num_local_experts"))
    if (has_experts or plain.get("n_routed_experts")) and "experts_keep" in form:
        stored = stored | {"modules_to_not_convert": form["experts_keep"]}
    return {**plain, "quantization_config": stored}


def _rows(path: Path) -> Iterator[tuple[list[str], Published]]:
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            config: Mapping[str, Any] = {
                name: text if name in _TEXT else json.loads(text)
                for name, text in row.items()
                if text and name not in _OWN
            }
            more = {name: json.loads(text) for name, text in _MORE.findall(row.get("more") or "")}
            config = {**config, **more}
            if row.get("stored"):
                config = in_form(config, row["stored"])
            yield (
                row["ids"].split(),
                Published(
                    config, row["confidence"], row["source"], billions=float(row["billions"])
                ),
            )
