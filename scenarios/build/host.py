"""The host of a scenario's engines, as a factor on the host times of their profile."""

from __future__ import annotations

from costmodels.engines.hosts import Host, fitted_on, load_host
from scenarios.schema import EngineOptions
from sim.errors import ScenarioError


def host_factor(options: EngineOptions) -> float:
    """Return what all host times of the engine's profile are multiplied by. Raises
    `ScenarioError`."""
    host = _host(options)
    return options.host_speed_factor * (1.0 if host is None else host.factor)


def host_notes(options: EngineOptions) -> tuple[str, ...]:
    """Return what the host that a scenario names does to host times."""
    host = _host(options)
    if host is None:
        return ()
    return (
        f"host {host.name}: a launch takes {1e6 * host.launch_s:.3g} us ({host.evidence.label}), "
        f"{host.factor:.3g} times that of {fitted_on().name}, where the profile's host times are "
        "from, and so do they",
    )


def _host(options: EngineOptions) -> Host | None:
    if options.host is None:
        return None
    if options.profile.endswith((".yaml", ".yml")):
        raise ScenarioError(
            f"engine.host {options.host}: the host times of engine.profile {options.profile} are "
            "those of the machine that it was fitted on; leave engine.host out, or use "
            "engine.host_speed_factor"
        )
    return load_host(options.host)
