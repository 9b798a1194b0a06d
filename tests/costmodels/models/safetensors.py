"""Read exact weight bytes of a checkpoint on disk from the headers of its safetensors files.

A shard starts with the length of its header (u64, little-endian) and the header, a JSON object of
``{tensor: {dtype, shape, data_offsets}}``. No weights are read.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

from costmodels.datafile import read_json_object
from sim.errors import ScenarioError

_INDEX = "model.safetensors.index.json"
_LENGTH = struct.Struct("<Q")
# A header larger than this is no header: the format's own limit is 100 MB.
_LARGEST_HEADER = 100_000_000


def checkpoint_bytes(folder: str | Path) -> dict[str, int]:
    """Bytes by dtype over all shards of a folder, largest first.

    Raises `ScenarioError` for a folder without shards, a shard that is cut or no safetensors file,
    or a sum that differs from the index's ``total_size``.
    """
    folder = Path(folder)
    index = folder / _INDEX
    found: dict[str, int] = {}
    names = (
        _indexed(index) if index.is_file() else sorted(p.name for p in folder.glob("*.safetensors"))
    )
    if not names:
        raise ScenarioError(f"{folder}: no safetensors files")
    for name in names:
        for dtype, size in shard_bytes(folder / name).items():
            found[dtype] = found.get(dtype, 0) + size
    if index.is_file():
        total, stated = sum(found.values()), index_bytes(index)
        if total != stated:
            raise ScenarioError(f"{index}: total_size {stated} is not the shards' {total} bytes")
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def index_bytes(path: str | Path) -> int:
    """``total_size`` of an index file: enough where the shards are not at hand."""
    metadata = read_json_object(Path(path)).get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    if not isinstance(size, int | float) or size <= 0:
        raise ScenarioError(f"{path}: metadata.total_size is missing; a number of bytes is needed")
    return int(size)


def shard_bytes(path: str | Path) -> dict[str, int]:
    """Bytes by dtype of one shard."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            head = file.read(_LENGTH.size)
            length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else 0
            if not 0 < length <= _LARGEST_HEADER:
                raise ScenarioError(f"{path}: not a safetensors file")
            header = json.loads(file.read(length))
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error.strerror or error})") from None
    except ValueError as error:
        raise ScenarioError(f"{path}: its header is not JSON ({error})") from None
    found: dict[str, int] = {}
    try:
        for name, tensor in header.items():
            if name != "__metadata__":
                start, end = tensor["data_offsets"]
                found[tensor["dtype"]] = found.get(tensor["dtype"], 0) + (end - start)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ScenarioError(f"{path}: a tensor's header lacks dtype or data_offsets") from None
    return found


def _indexed(path: Path) -> list[str]:
    files = read_json_object(path).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise ScenarioError(f"{path}: weight_map is missing")
    return sorted({str(name) for name in files.values()})
