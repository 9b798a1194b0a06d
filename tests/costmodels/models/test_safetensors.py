"""Weight bytes of a checkpoint, from its files' headers."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from sim.errors import ScenarioError
from tests.costmodels.models.safetensors import checkpoint_bytes, index_bytes, shard_bytes


def write_shard(path: Path, tensors: dict[str, tuple[str, int]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name, (dtype, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": [size], "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(place))


def test_weight_bytes_of_a_checkpoint(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.safetensors", {"q": ("BF16", 64), "k": ("F8_E4M3", 32)})
    write_shard(tmp_path / "b.safetensors", {"v": ("F8_E4M3", 100)})
    assert checkpoint_bytes(tmp_path) == {"F8_E4M3": 132, "BF16": 64}
    index = tmp_path / "model.safetensors.index.json"
    files = {"q": "a.safetensors", "k": "a.safetensors", "v": "b.safetensors"}
    index.write_text(json.dumps({"metadata": {"total_size": 196}, "weight_map": files}))
    assert index_bytes(index) == 196
    assert checkpoint_bytes(tmp_path) == {"F8_E4M3": 132, "BF16": 64}
    index.write_text(json.dumps({"metadata": {"total_size": 200}, "weight_map": files}))
    with pytest.raises(ScenarioError, match="total_size 200 is not the shards' 196 bytes"):
        checkpoint_bytes(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x05", struct.pack("<Q", 5) + b"{not}", b"\xff" * 16])
def test_files_that_are_no_shards(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(ScenarioError, match=r"a\.safetensors"):
        shard_bytes(path)
    with pytest.raises(ScenarioError, match="no safetensors files"):
        checkpoint_bytes(tmp_path / "absent")
