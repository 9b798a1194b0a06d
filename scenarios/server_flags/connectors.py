"""Read what vLLM's KV connectors keep below device memory into ``kv.tiers``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scenarios.files.yaml_text import parse_yaml
from scenarios.server_flags.values import (
    NotPriced,
    Settings,
    block_bytes,
    json_object,
    number,
    ranks_of,
)
from sim.errors import ScenarioError

_GIB = 1 << 30
_LMCACHE_CPU_GIB = 5.0
"""LMCache's max_local_cpu_size where nothing sets it, of each worker."""
_SIMPLE_BYTES = 8 * _GIB
"""SimpleCPUOffloadConnector's cpu_bytes_to_use where nothing sets it (vLLM 0.25.1)."""
_STORES = ("MooncakeStoreConnector", "HF3FSKVConnector")
_BETWEEN_ENGINES = ("Nixl", "Mooncake", "MoRIIO", "P2pNccl", "PyNccl", "PD")
_POOLS = (
    "keys and values that go from prefill to decode engines are no part of one engine's command: "
    "describe the fleet with pools (`fleetcast simulate scenarios/disaggregated.yaml` is one)"
)


def total_gib(text: str, settings: Settings) -> float:
    """Return a GPU's part of GiB that are the sum over an engine's ranks."""
    return number(text) / ranks_of(settings)


def kv_tiers(text: str, settings: Settings) -> dict[str, Any]:
    """Read vLLM's ``--kv-transfer-config`` into the tiers that its connector fills.

    Raises `NotPriced` for a connector without tiers, and ValueError for text that is no JSON.
    """
    return _tiers(json_object(text), settings)


def _tiers(config: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    name = str(config.get("kv_connector"))
    extra = config.get("kv_connector_extra_config") or {}
    if name == "MultiConnector":
        found: dict[str, Any] = {}
        for one in extra.get("connectors", ()):
            try:
                found |= _tiers(one, settings)
            except NotPriced as why:
                if why.gravity == "refused":
                    raise
        if found:
            return found
    elif name in ("OffloadingConnector", "SimpleCPUOffloadConnector"):
        return {"host": {"capacity_gib": _offloading_gib(name, extra, settings)}}
    elif name.startswith("LMCache"):
        return _lmcache_tiers(extra, settings)
    elif name in _STORES:
        return {"remote": {}}
    if config.get("kv_role") in ("kv_producer", "kv_consumer"):
        raise NotPriced(_POOLS)
    if name == "MultiConnector" or any(part in name for part in _BETWEEN_ENGINES):
        raise NotPriced(_POOLS, "reported")
    raise NotPriced(
        f"what {name} keeps outside device memory is computed again, not loaded; if it is a tier, "
        "give its size: --set kv.tiers.host.capacity_gib=...",
        "reported",
    )


def _offloading_gib(name: str, extra: Mapping[str, Any], settings: Settings) -> float:
    """Return the GiB a GPU of vLLM's own offloading; older versions give blocks, not bytes."""
    if "cpu_bytes_to_use_per_rank" in extra:
        return float(extra["cpu_bytes_to_use_per_rank"]) / _GIB
    size = extra.get("cpu_bytes_to_use")
    if size is None and "num_cpu_blocks" in extra:
        tokens = extra.get("block_size")
        blocks = int(extra["num_cpu_blocks"])
        return blocks * block_bytes(settings, None if tokens is None else int(tokens)) / _GIB
    if size is None and name == "SimpleCPUOffloadConnector":
        size = _SIMPLE_BYTES
    if size is None:
        raise ValueError("kv_connector_extra_config gives no cpu_bytes_to_use, which vLLM requires")
    return float(size) / _GIB / ranks_of(settings)


def _lmcache_tiers(extra: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return the tiers of LMCache by its file, its variables, and its keys in the flag."""
    options = _lmcache_file(settings.get("LMCACHE_CONFIG_FILE"))
    prefix = "LMCACHE_"
    options |= {
        name.removeprefix(prefix).lower(): value
        for name, value in settings.items()
        if name.startswith(prefix)
    }
    options |= {
        name.removeprefix("lmcache."): value
        for name, value in extra.items()
        if name.startswith("lmcache.")
    }
    tiers: dict[str, Any] = {}
    if str(options.get("local_cpu", True)).lower() not in ("false", "0"):
        size = float(options.get("max_local_cpu_size", _LMCACHE_CPU_GIB))
        tiers |= {"host": {"capacity_gib": size}} if size > 0 else {}
    disk = float(options.get("max_local_disk_size") or 0)
    if options.get("local_disk") and math.isfinite(disk):
        tiers["ssd"] = {"capacity_gib": disk} if disk > 0 else {}
    if options.get("remote_url"):
        tiers["remote"] = {}
    if not tiers:
        raise NotPriced("LMCache keeps nothing: its local_cpu is off", "reported")
    return tiers


def _lmcache_file(name: Any) -> dict[str, Any]:
    """Return the options of LMCache's YAML file; none if it is not here."""
    try:
        values, _ = parse_yaml(Path(str(name)).read_text(encoding="utf-8"), str(name))
    except (OSError, UnicodeDecodeError, ScenarioError):
        return {}
    return values if isinstance(values, dict) else {}
