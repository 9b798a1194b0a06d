"""Options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from scenarios.commands.app import check_format


def _checked_cluster(cluster: str | None) -> str | None:
    if cluster is not None:
        from scenarios.run.execution.workers import check_cluster

        check_cluster(cluster)
    return cluster


ScenarioFile = Annotated[
    Path | None, typer.Argument(help="Scenario YAML; or describe it with the options below.")
]
Override = Annotated[list[str] | None, typer.Option("--set", help="Any field: section.key=value.")]
Quantization = Annotated[
    str | None, typer.Option(help="Format or method of the layers' matrices: fp8, awq, nvfp4 ...")
]
KvDtype = Annotated[
    str | None, typer.Option("--kv-dtype", help="Format or method of the KV cache: fp8, int4 ...")
]
Jobs = Annotated[int | None, typer.Option(help="Processes. Default: one a core.")]
Cluster = Annotated[
    str | None,
    typer.Option(
        help="Run on a cluster: ray or ray://HOST:PORT, dask or a Dask scheduler (tcp://HOST:PORT).",
        callback=_checked_cluster,
    ),
]
OpenPage = Annotated[bool, typer.Option("--open", help="Show the page in a browser; needs --out.")]
OutputFormat = Annotated[str, typer.Option("--format", help="text or json.", callback=check_format)]

_PLUGINS = Annotated[
    list[Path] | None,
    typer.Option("--plugins", help="Folder whose Python policies scenarios may run."),
]
_FLAGS: dict[str, Any] = {
    "model": Annotated[
        str | None, typer.Option(help="Model id (see `list models`) or a config.json.")
    ],
    "gpu": Annotated[str | None, typer.Option(help="GPU (see `list gpus`).")],
    "tp": Annotated[int | None, typer.Option(help="Tensor-parallel size.")],
    "pp": Annotated[int | None, typer.Option(help="Pipeline stages.")],
    "dp": Annotated[int | None, typer.Option(help="Data-parallel ranks that share the experts.")],
    "enable_expert_parallel": Annotated[
        bool | None, typer.Option("--enable-expert-parallel", help="Experts whole on ranks.")
    ],
    "all2all_backend": Annotated[
        str | None, typer.Option(help="How ranks bring tokens to experts: deepep_low_latency ...")
    ],
    "replicas": Annotated[int | None, typer.Option(help="Replicas behind the router.")],
    "trace": Annotated[Path | None, typer.Option(help="Trace file to replay.")],
    "columns": Annotated[
        str | None,
        typer.Option(
            help="Columns of a trace of your own: arrival=time,input=prompt_tokens,output=..."
        ),
    ],
    "preset": Annotated[str | None, typer.Option(help="Workload preset.")],
    "rate": Annotated[float | None, typer.Option(help="Mean arrival rate, requests/s.")],
    "concurrency": Annotated[
        int | None, typer.Option(help="Closed loop: most requests in flight.")
    ],
    "users": Annotated[
        int | None, typer.Option(help="Closed loop: users, each with one request at a time.")
    ],
    "input_tokens": Annotated[int | None, typer.Option(help="Prompt length.")],
    "output_tokens": Annotated[int | None, typer.Option(help="Output length.")],
    "num_requests": Annotated[int | None, typer.Option(help="How many requests.")],
    "slo_ttft": Annotated[float | None, typer.Option(help="TTFT target, s.")],
    "slo_tpot": Annotated[float | None, typer.Option(help="TPOT target, s.")],
    "slo_e2e": Annotated[float | None, typer.Option(help="E2E target, s.")],
    "slo_itl": Annotated[
        float | None,
        typer.Option(help="Target of a request's p99 gap between tokens, s; others by slo.itl_of."),
    ],
    "seed": Annotated[int | None, typer.Option(help="Seed of everything random.")],
}
"""The options that stand for a scenario's fields, as `scenarios.files.flags` knows them."""

Flags = Mapping[str, Any]
"""The options among these that were given, by spelling (``--input-tokens``)."""


def takes_flags(names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of these names in the place of its parameter ``flags``.

    Their order is the order of ``--help``. The command receives a mapping of those that the user
    gave.
    """
    chosen = names.split()

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**values: Any) -> None:
            given = {name: values.pop(name) for name in chosen}
            flags = {
                f"--{name.replace('_', '-')}": str(value) if isinstance(value, Path) else value
                for name, value in given.items()
                if value is not None
            }
            command(flags=flags, **values)

        signature = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            kept = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            options = [
                kept.replace(name=name, default=None, annotation=_FLAGS[name]) for name in chosen
            ]
            parameters += options if parameter.name == "flags" else [kept]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def runs_policies(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command ``--plugins``, the folders whose policies a scenario may run."""

    @wraps(command)
    def run(*, plugins: list[Path] | None, **values: Any) -> None:
        if plugins:
            from scenarios.files.trusted import trust_plugins

            trust_plugins(plugins)
        command(**values)

    signature = inspect.signature(command, eval_str=True)
    option = inspect.Parameter(
        "plugins", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_PLUGINS
    )
    parameters = [*signature.parameters.values(), option]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def check_open(open_page: bool, out: Path | None) -> None:
    """Raise `BadParameter` for ``--open`` if no page is written."""
    if open_page and out is None:
        raise typer.BadParameter("there is no page to open without --out", param_hint="--open")
