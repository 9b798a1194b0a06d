"""The host of an engine: how fast it runs Python and launches kernels, by name or from a probe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from costmodels.datafile import find_name, read_data, read_yaml_object
from costmodels.fields import POSITIVE, TEXT, Fields
from sim.errors import ScenarioError
from sim.evidence import LABELS, Evidence

_FILE, _FORMAT = "engines/hosts.yaml", "host 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine beside the GPUs, as `hosts.yaml` or a file of ``fleetcast calibrate host`` has
    it."""

    name: str
    what: str
    """The machine in words."""
    python_call_s: float
    """Seconds of an empty Python call."""
    launch_s: float
    """Seconds of a launch of a tiny kernel."""
    evidence: Evidence
    """Label and source of ``launch_s``, which decides how fast host work is."""

    @property
    def factor(self) -> float:
        """How many times as long as on the profiles' own host an engine's host work takes."""
        return self.launch_s / fitted_on().launch_s


def named_hosts() -> list[Host]:
    """Return the hosts of `hosts.yaml`."""
    return [_named(name) for name in read_data(_FILE)["hosts"]]


def fitted_on() -> Host:
    """Return the host that the host times of the built-in profiles were fitted on."""
    return _named(read_data(_FILE)["fitted_on"])


def _named(name: str) -> Host:
    row = read_data(_FILE)["hosts"][name]
    return Host(
        name=name,
        what=row["what"],
        python_call_s=row["python_call_s"],
        launch_s=row["launch_s"],
        evidence=Evidence(label=row["label"], source=row["source"]),
    )


def probed_host(
    name: str, what: str, *, python_call_s: float, launch_s: float | None, source: str
) -> Host:
    """Return a host that was probed; a launch that was not measured follows from Python's speed."""
    label = "measured"
    if launch_s is None:
        line, label = read_data(_FILE)["launch"], "extrapolated"
        launch_s = line["base_s"] + line["per_call"] * python_call_s
        source += "; its launches from Python's speed, as on the ground truth's machine"
    return Host(
        name=name,
        what=what,
        python_call_s=python_call_s,
        launch_s=launch_s,
        evidence=Evidence(label=label, source=source),
    )


def load_host(name: str) -> Host:
    """Return a host by its name, or from a file (.yaml) of ``fleetcast calibrate host``.

    Raises `ScenarioError` for an unknown name or a file that cannot be used.
    """
    if not name.endswith((".yaml", ".yml")):
        return _named(
            find_name("host", name, {known: known for known in read_data(_FILE)["hosts"]})
        )
    content = read_yaml_object(Path(name))
    if content.get("format") != _FORMAT:
        raise ScenarioError(
            f"{name} describes no host; `fleetcast calibrate host` writes such files"
        )
    fields = Fields(content, name)
    label = fields.read(TEXT, "label") or "assumed"
    if label not in LABELS:
        raise fields.wrong("label", f"is {label!r}; labels: {', '.join(LABELS)}")
    return Host(
        name=Path(name).stem,
        what=fields.read(TEXT, "what") or "",
        python_call_s=fields.need(POSITIVE, "python_call_s", what="a number of seconds"),
        launch_s=fields.need(POSITIVE, "launch_s", what="a number of seconds"),
        evidence=Evidence(label=label, source=fields.read(TEXT, "source") or name),
    )


def save_host(host: Host, path: Path) -> None:
    """Write a host's file. Raises `ScenarioError` if it cannot be written."""
    content: dict[str, Any] = {
        "format": _FORMAT,
        "what": host.what,
        "python_call_s": float(f"{host.python_call_s:.4g}"),
        "launch_s": float(f"{host.launch_s:.4g}"),
        "label": host.evidence.label,
        "source": host.evidence.source,
    }
    try:
        path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be written ({error.strerror or error})") from None
