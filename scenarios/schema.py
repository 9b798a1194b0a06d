"""What a scenario may say. The YAML file, the command line and Python all become a `Scenario`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

_LONGEST_S = 4e9  # 127 years: int64 nanoseconds end at 292
_MOST_TOKENS = 100_000_000
_DEFAULT_MAX_TOKENS = 131_072


def _not_true_or_false(value: Any) -> Any:
    """YAML's yes, no, on and off are truth values, which pydantic would take for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError(f"must be a number, not {str(value).lower()}")
    return value


Number = Annotated[float, BeforeValidator(_not_true_or_false)]
Whole = Annotated[int, BeforeValidator(_not_true_or_false)]
Positive = Annotated[Number, Field(gt=0)]
Seconds = Annotated[Number, Field(ge=1e-9, le=_LONGEST_S)]
Count = Annotated[Whole, Field(ge=1)]
Tokens = Annotated[Whole, Field(ge=1, le=_MOST_TOKENS)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Hardware(_Section):
    """The accelerator every replica runs on."""

    gpu: str = Field("H200", description="a name of `fleetcast list gpus`")


class EngineOptions(_Section):
    """The serving engine. Options are named as vLLM names them."""

    profile: str = Field(
        "vllm-0.25", description="an engine and version, or a calibration file (.yaml)"
    )
    operators: str = Field(
        "fitted",
        description="where kernel times come from: fitted, datasheet, aic (AIConfigurator's "
        "measured tables), or table files (.parquet, separated by commas)",
    )
    tensor_parallel_size: Annotated[Whole, Field(ge=1, le=1024)] = 1
    quantization: Literal["fp8"] | None = Field(
        None, description="of the layers' matrices, made at start-up; None: the checkpoint's"
    )
    max_num_batched_tokens: Tokens | None = Field(
        None, description="tokens a step; None: the engine's default for the GPU"
    )
    max_num_seqs: Tokens | None = Field(
        None, description="requests running at once; None: the engine's default for the GPU"
    )
    max_model_len: Tokens | None = Field(
        None, description="longest prompt + output; None: the model's, or what the KV pool holds"
    )
    max_cudagraph_capture_size: Tokens | None = Field(
        None, description="largest batch, in tokens, with a CUDA graph; None: the engine's default"
    )
    scheduler: str = Field("fcfs", description="a scheduler, or your own as module:attribute")
    async_scheduling: bool = Field(True, description="plan a step before the last one is read")
    host_speed_factor: Annotated[Number, Field(gt=0, le=1000)] = Field(
        1.0, description="multiplies all host times"
    )


class KvOptions(_Section):
    """The paged KV cache of each engine."""

    cache_dtype: Literal["auto", "fp8"] = Field(
        "auto", description="type of keys and values; auto: the model's"
    )
    block_size: Tokens = Field(16, description="tokens a block")
    gpu_memory_utilization: Annotated[Number, Field(gt=0, le=1)] = 0.9
    num_gpu_blocks: Annotated[Whole, Field(ge=2, le=10**12)] | None = Field(
        None, description="override the number of blocks the memory plan gives"
    )
    enable_prefix_caching: bool = True


class Pool(_Section):
    """Equal replicas behind one router."""

    replicas: Annotated[Whole, Field(ge=1, le=10_000)] = 1
    router: str = Field("round_robin", description="a router, or your own as module:attribute")


class Trace(_Section):
    """A recorded workload."""

    path: str = Field(description="the file; relative paths start at the scenario's folder")
    format: str | None = Field(None, description="its format; None: detected from the content")
    skip_bad_rows: bool = Field(False, description="count malformed rows instead of stopping")
    spread_ticks: bool = Field(True, description="spread Mooncake's 3 s ticks")


class Lognormal(_Section):
    """A component of a length distribution: ln(tokens) is normal."""

    weight: Positive = 1.0
    mu: Number
    sigma: Positive


class Lengths(_Section):
    """A fixed length, or a clipped mixture of lognormals."""

    fixed: Annotated[Whole, Field(ge=0, le=_MOST_TOKENS)] | None = None
    lognormal: list[Lognormal] = []
    min: Tokens = 1
    max: Tokens = _DEFAULT_MAX_TOKENS

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.fixed is None) == (not self.lognormal):
            raise ValueError("give either fixed or lognormal")
        if self.fixed is not None and (self.min, self.max) != (1, _DEFAULT_MAX_TOKENS):
            raise ValueError("min and max clip lognormal lengths; a fixed length has none")
        if self.min > self.max:
            raise ValueError(f"min {self.min} must not be above max {self.max}")
        total = sum(component.weight for component in self.lognormal)
        if self.lognormal and abs(total - 1) > 0.025:
            raise ValueError(f"the weights of lognormal must sum to 1, not {total:g}")
        return self


class Generator(_Section):
    """A synthetic workload."""

    arrivals: Literal["poisson", "gamma", "constant", "all-at-once"] = "poisson"
    cv: Annotated[Number, Field(ge=0.01, le=100)] = Field(
        1.0, description="of the gaps between arrivals, for gamma"
    )
    input_tokens: Lengths
    output_tokens: Lengths

    @model_validator(mode="after")
    def _has_prompts(self) -> Self:
        if self.input_tokens.fixed == 0:
            raise ValueError("input_tokens must be at least 1; only output_tokens may be 0")
        return self


class Workload(_Section):
    """Who asks what, when: a trace, a preset, or a generator, and what is done to it."""

    trace: Trace | None = None
    preset: str | None = Field(None, description="a name of `fleetcast list presets`")
    generator: Generator | None = None
    rate_per_s: Annotated[Positive, Field(ge=1e-9, le=1e9)] | None = Field(
        None, description="mean arrival rate; a trace's time is stretched to it"
    )
    num_requests: Count | None = Field(
        None, description="generate, or keep from a trace, this many"
    )
    duration_s: Seconds | None = Field(None, description="generate arrivals for this long")
    window_s: tuple[Number, Number] | None = Field(
        None, description="[start, end) of a trace to keep, before its rate is scaled"
    )
    repeat: Count = Field(1, description="play a trace this many times, one after another")
    max_concurrency: Count | None = Field(
        None, description="closed loop: at most this many requests in flight"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [name for name in ("trace", "preset", "generator") if getattr(self, name)]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"give exactly one of trace, preset, generator; found {found}")
        return self

    @model_validator(mode="after")
    def _fits_source(self) -> Self:
        if self.trace is not None and self.duration_s is not None:
            raise ValueError("duration_s is for generated workloads; cut a trace with window_s")
        if self.trace is None and (self.window_s is not None or self.repeat > 1):
            raise ValueError("window_s and repeat are for traces")
        if (
            self.generator is not None
            and self.generator.arrivals == "all-at-once"
            and (self.rate_per_s is not None or self.duration_s is not None)
        ):
            raise ValueError("all-at-once arrivals have no rate_per_s and no duration_s")
        if self.num_requests is not None and self.duration_s is not None:
            raise ValueError("give num_requests or duration_s, not both")
        if self.window_s is not None and not 0 <= self.window_s[0] < self.window_s[1]:
            start, end = self.window_s
            raise ValueError(
                f"window_s must be [start, end] with 0 <= start < end, not [{start:g}, {end:g}]"
            )
        return self


class SloTargets(_Section):
    """Latency targets in seconds, each for every request; None is no target."""

    ttft_s: Positive | None = None
    tpot_s: Positive | None = None
    e2e_s: Positive | None = None


class Scenario(_Section):
    """One simulation. Everything not given has a default; unknown keys are refused."""

    model: str = Field(
        min_length=1, description="a name of `fleetcast list models`, or a config.json"
    )
    hardware: Hardware = Hardware()
    engine: EngineOptions = EngineOptions()
    kv: KvOptions = KvOptions()
    pool: Pool = Pool()
    workload: Workload
    slo: SloTargets = SloTargets()
    horizon_s: Seconds | None = Field(
        None, description="stop here; requests still there are unfinished. None: run until empty"
    )
    seed: Annotated[Whole, Field(ge=0)] = 0
    bands: bool | None = Field(
        None,
        description="error bands, by simulating twice more; None: up to 20,000 requests",
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_sections(cls, values: Any) -> Any:
        """A section whose keys are all commented out is null in YAML: it has its defaults."""
        optional = ("hardware", "engine", "kv", "pool", "slo")
        if not isinstance(values, dict):
            return values
        return {k: v for k, v in values.items() if v is not None or k not in optional}
