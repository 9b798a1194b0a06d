"""The table of published checkpoints: its parameter counts agree with what publishers say."""

from __future__ import annotations

import re

import pytest

from costmodels.datafile import read_data
from costmodels.models.catalog import load_model, model_names
from costmodels.models.published import BUILT_IN, FOLDER, checkpoints, in_form, stored_form
from costmodels.models.quantization import load_method

_SIZE = re.compile(r"(?<![A-Za-z0-9._])(\d+(?:\.\d+)?)[Bb](?![a-z0-9])")
# The number in the name is that of active parameters.
_ACTIVE = ("Llama-4", "OLMoE")
TABLED = {name: row for name, row in checkpoints().items() if row.billions is not None}


def test_the_table_is_large_and_says_where_it_is_from() -> None:
    assert len(TABLED) > 500
    assert len(list(FOLDER.glob("*.csv"))) >= 8
    for row in TABLED.values():
        assert row.confidence in ("V,C", "V(part),C", "R,C")
        assert row.source


def test_parameters_agree_with_the_published_count() -> None:
    for model_id, row in TABLED.items():
        model = load_model(model_id)
        # Towers are counted without the deep stack of mergers that Qwen3-VL has.
        within = 0.04 if model.towers else 0.02
        assert model.total_params / 1e9 == pytest.approx(row.billions, rel=within), model_id
        assert model.max_position_embeddings >= 2048, model_id


def test_published_counts_agree_with_the_names() -> None:
    compared = 0
    for model_id, row in TABLED.items():
        found = _SIZE.search(model_id)
        if found is None or _is_active(model_id):
            continue
        named, stated = float(found[1]), row.billions
        assert stated is not None
        if "not counted" in row.source or "text model" in row.source:
            assert 0.45 * named < stated < 1.3 * named, model_id  # towers are in the name's number
            continue
        # Names round down: Qwen2.5-7B has 7.6 billion, gemma-7b 8.5, gemma-2-2b 2.6.
        assert 0.92 * named < stated < 1.2 * named + 0.35, model_id
        compared += 1
    assert compared > 250


def _is_active(model_id: str) -> bool:
    return any(part in model_id for part in _ACTIVE)


def test_no_id_is_in_two_rows() -> None:
    ids = list(read_data(BUILT_IN)["models"])
    ids += [
        alias for row in read_data(BUILT_IN)["models"].values() for alias in row.get("aliases", ())
    ]
    for path in FOLDER.glob("*.csv"):
        for line in path.read_text(encoding="utf-8").splitlines()[1:]:
            ids += line.partition(",")[0].split()
    folded = [one.casefold() for one in ids]
    assert len(folded) == len(set(folded)), sorted({one for one in folded if folded.count(one) > 1})


def test_every_form_can_be_read_and_served() -> None:
    base = checkpoints()["Qwen/Qwen3-8B"].config
    for name in read_data("models/model_names.yaml")["forms"]:
        config = in_form(base, name)
        assert ("quantization_config" in config) == (stored_form(name)["config"] is not None)
        if stored_form(name)["method"] is not None:
            load_method(stored_form(name)["method"])
    for rule in read_data("models/model_names.yaml")["rules"]:
        assert "refused" in rule or stored_form(rule["form"])
        re.compile(rule["pattern"])


def test_built_in_models_come_first() -> None:
    assert list(checkpoints())[: len(model_names())] == model_names()
