"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def _checked_cluster(cluster: str | None) -> str | None:
    if cluster is not None:
        from scenarios.run.execution.workers import check_cluster

        check_cluster(cluster)
    return cluster


ScenarioFile = Annotated[
    Path | None, typer.Argument(help="Scenario YAML; or describe it with the options below.")
]
Model = Annotated[str | None, typer.Option(help="Model id (see `list models`) or a config.json.")]
Gpu = Annotated[str | None, typer.Option(help="GPU (see `list gpus`).")]
TensorParallel = Annotated[int | None, typer.Option(help="Tensor-parallel size.")]
PipelineParallel = Annotated[int | None, typer.Option(help="Pipeline stages.")]
DataParallel = Annotated[
    int | None, typer.Option(help="Data-parallel ranks that share the experts.")
]
ExpertParallel = Annotated[
    bool | None,
    typer.Option("--enable-expert-parallel", help="Experts whole on ranks."),
]
All2AllBackend = Annotated[
    str | None, typer.Option(help="How ranks bring tokens to experts: deepep_low_latency ...")
]
Replicas = Annotated[int | None, typer.Option(help="Replicas behind the router.")]
TraceFile = Annotated[Path | None, typer.Option(help="Trace file to replay.")]
Preset = Annotated[str | None, typer.Option(help="Workload preset.")]
Rate = Annotated[float | None, typer.Option(help="Mean arrival rate, requests/s.")]
Concurrency = Annotated[int | None, typer.Option(help="Closed loop: most requests in flight.")]
InputTokens = Annotated[int | None, typer.Option(help="Prompt length.")]
OutputTokens = Annotated[int | None, typer.Option(help="Output length.")]
NumRequests = Annotated[int | None, typer.Option(help="How many requests.")]
SloTtft = Annotated[float | None, typer.Option(help="TTFT target, s.")]
SloTpot = Annotated[float | None, typer.Option(help="TPOT target, s.")]
SloE2e = Annotated[float | None, typer.Option(help="E2E target, s.")]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random.")]
Override = Annotated[list[str] | None, typer.Option("--set", help="Any field: section.key=value.")]
Quantization = Annotated[
    str | None, typer.Option(help="Format or method of the layers' matrices: fp8, awq, nvfp4 ...")
]
KvDtype = Annotated[
    str | None, typer.Option("--kv-dtype", help="Format or method of the KV cache: fp8, int4 ...")
]
Users = Annotated[
    int | None, typer.Option(help="Closed loop: users, each with one request at a time.")
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
OutputFormat = Annotated[str, typer.Option("--format", help="text or json.")]


def check_open(open_page: bool, out: Path | None) -> None:
    """Raise `BadParameter` for ``--open`` if no page is written."""
    if open_page and out is None:
        raise typer.BadParameter("there is no page to open without --out", param_hint="--open")
