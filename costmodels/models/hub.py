"""Reads a config.json from the Hugging Face hub, if ``huggingface_hub`` is installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

HUB = "https://huggingface.co"
_TIMEOUT_S = 5.0
_FILES = ("config.json", "hf_quant_config.json")


def config_from_hub(model_id: str) -> Path | None:
    """Return the path of a model's config in the hub's cache on disk, fetched if it is not there.

    ModelOpt's second file lies beside it, where a checkpoint has one. Returns None without
    ``huggingface_hub``, without a network (or with ``HF_HUB_OFFLINE``), and for names that are no
    id or that the hub does not give out.
    """
    if model_id.count("/") != 1 or find_spec("huggingface_hub") is None:
        return None
    config = _fetched(model_id, _FILES[0])
    if config is not None:
        _fetched(model_id, _FILES[1])
    return config


def _fetched(model_id: str, file: str) -> Path | None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    for is_local in (True, False):
        try:
            return Path(
                hf_hub_download(model_id, file, local_files_only=is_local, etag_timeout=_TIMEOUT_S)
            )
        except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError):
            continue
    return None
