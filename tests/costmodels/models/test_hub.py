"""Configs of the Hugging Face hub, read through a stand-in for ``huggingface_hub``."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from costmodels.models import catalog
from costmodels.models.catalog import load_model
from sim.errors import ScenarioError

LIBRARY = """
import os
from pathlib import Path
from .errors import LocalEntryNotFoundError

def hf_hub_download(repo_id, filename, *, local_files_only, etag_timeout):
    path = Path(os.environ["TEST_HUB"]) / repo_id / filename
    if local_files_only or not path.is_file():
        raise LocalEntryNotFoundError(f"{repo_id}/{filename}")
    return str(path)
"""
ERRORS = """
class HfHubHTTPError(OSError): pass
class LocalEntryNotFoundError(FileNotFoundError): pass
"""
CONFIG = {
    "model_type": "qwen3",
    "num_hidden_layers": 4,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that the stand-in serves."""
    library = tmp_path / "library" / "huggingface_hub"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text(LIBRARY)
    (library / "errors.py").write_text(ERRORS)
    forget()
    monkeypatch.syspath_prepend(str(library.parent))
    monkeypatch.setenv("TEST_HUB", str(tmp_path / "hub"))
    importlib.invalidate_caches()
    catalog._by_name.cache_clear()
    yield tmp_path / "hub"
    catalog._by_name.cache_clear()
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.startswith("huggingface_hub")]:
        del sys.modules[name]


def publish(hub: Path, model_id: str, file: str, content: dict[str, object]) -> None:
    folder = hub / model_id
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(json.dumps(content))


def test_a_model_of_no_table_is_read_from_the_hub(hub: Path) -> None:
    publish(hub, "someone/New-1B", "config.json", CONFIG)
    model = load_model("someone/New-1B")
    assert (model.name, model.num_layers, model.notes) == ("someone/New-1B", 4, ())
    assert "huggingface.co/someone/New-1B" in model.source


def test_the_hub_knows_more_than_a_name(hub: Path) -> None:
    publish(hub, "someone/Qwen3-8B-tuned", "config.json", CONFIG)
    assert load_model("someone/Qwen3-8B-tuned").num_layers == 4


def test_the_second_file_of_modelopt_is_read_beside_it(hub: Path) -> None:
    publish(hub, "someone/New-1B", "config.json", CONFIG)
    publish(hub, "someone/New-1B", "hf_quant_config.json", {"quantization": {"quant_algo": "FP8"}})
    assert load_model("someone/New-1B").precision.ffn == "fp8"


def test_what_the_hub_does_not_have_is_read_from_its_name(hub: Path) -> None:
    assert load_model("someone/Qwen3-8B-FP8").notes
    with pytest.raises(ScenarioError, match="unknown model"):
        load_model("someone/New-1B")


def test_an_architecture_that_is_not_modelled_is_said(hub: Path) -> None:
    publish(hub, "someone/Odd-1B", "config.json", CONFIG | {"model_type": "bert"})
    with pytest.raises(ScenarioError, match=r"model_type 'bert' .* is an encoder"):
        load_model("someone/Odd-1B")
