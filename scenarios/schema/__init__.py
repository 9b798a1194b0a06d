"""The fields of a scenario; the YAML file, the command line and Python all become a `Scenario`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from scenarios.schema.fields import (
    LONGEST_S,
    BytesPerS,
    Number,
    Policy,
    Seconds,
    Section,
    Tokens,
    Whole,
)
from scenarios.schema.fleet import (
    Autoscaling,
    Clients,
    Faults,
    KvTransfer,
    PoolRoles,
    Prices,
    Startup,
)
from scenarios.schema.lora import Lora
from scenarios.schema.memory import KvPolicy, KvTiers, OffloadOptions, StartupLog
from scenarios.schema.speculative import Speculative
from scenarios.schema.workload import SloTargets, Workload


class Hardware(Section):
    """The accelerator every replica runs on."""

    gpu: str = Field("H200", description="a name of `fleetcast list gpus`")
    gpus_per_node: Annotated[Whole, Field(ge=1, le=100_000)] | None = Field(
        None,
        description="GPUs that NVLink (or what stands for it) joins, beyond which ranks talk over "
        "the network; None: the GPU's, 8 in most nodes and 72 in a GB200 rack",
    )
    host_memory_gb: Annotated[Number, Field(ge=0, le=1e6)] | None = Field(
        None, description="GiB of host memory for each GPU; None: not known, taken as enough"
    )
    host_link_bytes_per_s: BytesPerS | None = Field(
        None, description="between a GPU and its host, achievable; None: the GPU's (links.yaml)"
    )
    disk_read_bytes_per_s: BytesPerS | None = Field(
        None, description="of the disk behind each GPU; None: an NVMe drive's (links.yaml)"
    )
    stage_link: str | None = Field(
        None,
        description="what joins pipeline stages, a name of links.yaml: wan-100mbit-100ms, ...; "
        "None: the GPUs' own fabric and network",
    )
    stage_link_latency_s: Annotated[Number, Field(ge=0, le=LONGEST_S)] | None = Field(
        None, description="one way, in place of the named link's"
    )
    stage_link_bytes_per_s: BytesPerS | None = Field(
        None, description="in place of the named link's; with a latency it needs no name"
    )


def _version_text(value: object) -> object:
    """Return the text of a version that YAML has read as a number: 0.1 and 0.2 were 0.10 and
    0.20, as vLLM's own 0.1 and 0.2 are older than any profile."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:.2f}" if value in (0.1, 0.2, 0.3) else f"{value:g}"
    return value


class EngineOptions(Section):
    """The serving engine. Options are named as vLLM names them."""

    profile: str = Field(
        "vllm-0.25", description="an engine and version, or a calibration file (.yaml)"
    )
    operators: str | dict[str, str] = Field(
        "fitted",
        description="where kernel times come from: fitted, datasheet, ours (fleetcast's measured "
        "tables), aic or aic:vllm-0.24 (AIConfigurator's), a folder of tables or table files "
        "(.parquet, separated by commas); or one of them by family, as {default: fitted, gemm: "
        "ours}",
    )
    version: Annotated[str, BeforeValidator(_version_text)] | None = Field(
        None,
        description="of the profile's engine, as 0.11 or 0.19.1: the nearest profile stands for "
        "it; None: the profile's own",
    )
    tensor_parallel_size: Annotated[Whole, Field(ge=1, le=1024)] = Field(
        1, description="GPUs that share each layer of a replica"
    )
    language_model_only: bool = Field(
        False, description="load no towers of images and sounds, and take none"
    )
    pipeline_parallel_size: Annotated[Whole, Field(ge=1, le=1024)] = Field(
        1, description="stages that the layers of a replica are divided into"
    )
    data_parallel_size: Annotated[Whole, Field(ge=1, le=1024)] = Field(
        1,
        description="ranks of a replica with requests of their own that share its experts",
    )
    prefill_context_parallel_size: Annotated[Whole, Field(ge=1, le=1024)] = Field(
        1,
        description="ranks that share the tokens of a prompt, GPUs of their own; decodes are "
        "computed by all of them, each on its part of the KV cache",
    )
    prefill_context_parallel_mode: Literal["all_gather", "ring"] = Field(
        "all_gather",
        description="how keys and values come to those ranks: before attention (vLLM), or passed "
        "round while it computes",
    )
    decode_context_parallel_size: Annotated[Whole, Field(ge=1, le=1024)] = Field(
        1,
        description="ranks of a tensor-parallel group that split each sequence's KV cache; it "
        "divides tensor_parallel_size",
    )
    enable_expert_parallel: bool = Field(
        False, description="experts whole on ranks, instead of a slice of each on every rank"
    )
    all2all_backend: Literal[
        "allgather_reducescatter", "deepep_low_latency", "deepep_high_throughput"
    ] = Field(
        "allgather_reducescatter",
        description="how data-parallel ranks bring tokens to experts and back",
    )
    enable_eplb: bool = Field(
        False, description="place experts by their load, with copies of the most popular"
    )
    num_redundant_experts: Annotated[Whole, Field(ge=0, le=100_000)] = Field(
        0, description="copies beside the experts of each layer (enable_eplb)"
    )
    expert_skew: Annotated[Number, Field(ge=0, le=10)] | None = Field(
        None,
        description="Zipf exponent of how popular experts are, where ranks hold whole ones; 0: "
        "equally, which leaves the imbalance of chance; None: what is published of a trained model",
    )
    expert_loads: tuple[Annotated[Number, Field(ge=0)], ...] | None = Field(
        None, description="relative load of each expert of a layer, in place of expert_skew"
    )
    enable_dbo: bool = Field(
        False, description="two half batches, one computing while the other communicates"
    )
    dbo_decode_token_threshold: Tokens = Field(
        32, description="tokens a rank from which a step of decodes is halved"
    )
    dbo_prefill_token_threshold: Tokens = Field(512, description="the same of a step with prefill")
    enable_sp: bool = Field(
        False,
        description="sequence parallelism: a reduce-scatter and an all-gather in place of each "
        "all-reduce, norms on a rank's part of the tokens",
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto",
        description="of weights, activations and KV cache that are not quantised; auto: the "
        "checkpoint's, 16 bits for one in 32; float32 is priced from measured tables alone",
    )
    quantization: (
        Literal[
            "fp8",
            "fp8_per_block",
            "w8a8_int8",
            "awq",
            "gptq",
            "mxfp4",
            "modelopt_fp4",
            "w4a8kv4",
            "w4a8kv4_per_channel",
            "w4a4",
        ]
        | None
    ) = Field(
        None,
        description="of the layers' matrices (`fleetcast list quantization`); None: the "
        "checkpoint's",
    )
    attention_backend: Literal["auto", "unfused", "fa1", "fa2", "fa3", "flashmla"] = Field(
        "auto",
        description="attention kernels, by their published curves; auto: those the engine chooses, "
        "at the constants fitted to it",
    )
    cpu_offload_gb: Annotated[Number, Field(ge=0, le=1e6)] = Field(
        0.0,
        description="GiB of weights a GPU kept in host memory: whole layers, which kernels read "
        "over the host's link in place (see offload for layers fetched ahead)",
    )
    max_num_batched_tokens: Tokens | None = Field(
        None,
        description="tokens a step, a rank; None: the engine's default for the GPU",
    )
    max_num_seqs: Tokens | None = Field(
        None, description="requests running at once, a rank; None: the engine's default for the GPU"
    )
    max_model_len: Tokens | None = Field(
        None, description="longest prompt + output; None: the model's, or what the KV pool holds"
    )
    max_position_embeddings: Tokens | None = Field(
        None,
        description="positions of the model, where scaled rope (YaRN) or an override gives it "
        "others than its config.json; None: the config's",
    )
    max_cudagraph_capture_size: Tokens | None = Field(
        None, description="largest batch, in tokens, with a CUDA graph; None: the engine's default"
    )
    cudagraph_mode: (
        Literal["FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "PIECEWISE", "NONE"] | None
    ) = Field(
        None,
        description="which steps replay CUDA graphs: one for steps of decodes alone (FULL), "
        "pieces between attention calls for others (PIECEWISE); None: as the profile's engine",
    )
    long_prefill_token_threshold: Annotated[Whole, Field(ge=0)] = Field(
        0, description="most tokens of one prompt in a step; 0: as many as fit"
    )
    shared_prefix_attention: Literal["none", "cascade", "tree"] = Field(
        "none",
        description="whether decode attention reads prefixes that requests share once: cascade, "
        "vLLM's (opt-in) for the prefix of all running requests; tree, every shared prefix, as "
        "Hydragen and ChunkAttention do",
    )
    scheduler: Policy = Field(
        "fcfs",
        description="a scheduler, or your own as module:attribute; with options, a section of its "
        "name and them",
    )
    speculative: Speculative | None = Field(
        None, description="speculative decoding; None: a decode step gives one token a sequence"
    )
    preemption_mode: Literal["recompute", "swap"] = Field(
        "recompute",
        description="recompute a preempted request's KV cache, or move it to the host and back",
    )
    async_scheduling: bool | None = Field(
        None, description="plan a step before the last one is read; None: as the profile's version"
    )
    host: str | None = Field(
        None,
        description="the machine beside the GPUs: a name of hosts.yaml (bare-metal, ...) or a file "
        "of `fleetcast calibrate host` (.yaml); None: that of the profile",
    )
    api_server_count: Annotated[Whole, Field(ge=1, le=1000)] | None = Field(
        None,
        description="processes that receive, tokenize, detokenize and send, an engine: what a "
        "client sees beside the engine core; None: they take no time",
    )
    host_speed_factor: Annotated[Number, Field(gt=0, le=1000)] = Field(
        1.0, description="multiplies all host times, beside what `host` does"
    )


class KvOptions(Section):
    """The paged KV cache of each engine."""

    cache_dtype: Literal["auto", "fp8", "fp8_ds_mla", "int8", "int4", "kivi4", "kivi2"] = Field(
        "auto",
        description="type of keys and values (`fleetcast list quantization`); auto: the model's",
    )
    block_size: Tokens = Field(16, description="tokens a block")
    gpu_memory_utilization: Annotated[Number, Field(gt=0, le=1)] | None = Field(
        None,
        description="share of device memory for weights, activations and KV cache; None: the "
        "default of the engine's version (0.92 of vLLM 0.25, 0.9 of 0.19 and older)",
    )
    num_gpu_blocks: Annotated[Whole, Field(ge=2, le=10**12)] | None = Field(
        None, description="override the number of blocks the memory plan gives"
    )
    startup_log: StartupLog | None = Field(
        None, description="what a server's start-up log said of memory; None: there is none"
    )
    swap_space_gib: Annotated[Number, Field(ge=0, le=1e6)] = Field(
        4.0, description="host memory for swapped requests, a GPU, in GiB (preemption_mode swap)"
    )
    swap_bytes_per_s: BytesPerS | None = Field(
        None, description="of the host link, each way; None: the GPU's, as its datasheet has it"
    )
    enable_prefix_caching: bool = Field(
        True, description="reuse the blocks of earlier requests with the same first tokens"
    )
    prefix_index: Literal["block_hash", "radix"] = Field(
        "block_hash",
        description="how cached prefixes are found: vLLM's hashes of full blocks, or SGLang's "
        "radix tree over pages of block_size tokens (1 there), which trace ids need not line up "
        "with",
    )
    eviction: Policy = Field(
        "lru",
        description="what the prefix cache drops when blocks are needed: lru, lfu, fifo, or "
        "{name: ttl, seconds: 300}; or your own as module:attribute",
    )
    share_across_tenants: bool = Field(
        False,
        description="whether one class of requests (workload.classes) can hit what another's "
        "brought, where both play the same trace; false: as with a cache_salt for each tenant. "
        "The same for all pools",
    )
    tiers: KvTiers | None = None
    mamba_cache_mode: Literal["none", "align", "all"] = Field(
        "none",
        description="states of recurrent layers kept for prefix hits; with none there are no hits; "
        "align keeps them where chunks of prompts end with a block, all at every block (Mamba-2 "
        "alone)",
    )
    policy: KvPolicy | None = Field(
        None, description="keep, or read, part of the tokens; None: all, as vLLM does"
    )


class Pool(Section):
    """Equal replicas behind one router."""

    replicas: Annotated[Whole, Field(ge=1, le=10_000)] = Field(
        1, description="engines, of all their ranks' GPUs each"
    )
    router: Policy = Field(
        "round_robin",
        description="a router, or your own as module:attribute; with options, a section of its "
        "name and them",
    )


class PoolSpec(PoolRoles):
    """One of several pools. What its sections leave out is as the scenario's own sections say."""

    hardware: Hardware | None = None
    engine: EngineOptions | None = None
    kv: KvOptions | None = None


class Scenario(Section):
    """One simulation. Everything not given has a default; unknown keys are refused."""

    model: str = Field(
        min_length=1, description="a name of `fleetcast list models`, or a config.json"
    )
    hardware: Hardware = Hardware()
    engine: EngineOptions = EngineOptions()
    kv: KvOptions = KvOptions()
    offload: OffloadOptions = OffloadOptions()
    lora: Lora = Lora()
    pool: Pool = Pool()
    pools: tuple[PoolSpec, ...] = Field(
        (), description="several pools, in place of pool.replicas; none: one pool of all sections"
    )
    kv_transfer: KvTransfer = KvTransfer()
    workload: Workload
    admission: Policy | None = Field(
        None,
        description="who is let in: an admission policy, or your own as module:attribute; None: "
        "everybody",
    )
    clients: Clients | None = None
    faults: Faults | None = None
    startup: Startup = Startup()
    autoscaler: Autoscaling | None = None
    prices: Prices | None = None
    slo: SloTargets = SloTargets()
    warmup_s: Annotated[Number, Field(ge=0, le=LONGEST_S)] = Field(
        0.0,
        description="requests that arrive before this are simulated but not measured; with one, "
        "rates are measured up to the last arrival, so that neither filling nor draining counts",
    )
    horizon_s: Seconds | None = Field(
        None, description="stop here; requests still there are unfinished. None: run until empty"
    )
    seed: Annotated[Whole, Field(ge=0)] = Field(0, description="of everything random")
    replications: Annotated[Whole, Field(ge=1, le=10_000)] = Field(
        1,
        description="simulate with this many seeds, from `seed` on; figures are means over them "
        "with a 95% confidence interval",
    )
    bands: bool | None = Field(
        None,
        description="error bands, by simulating twice more; None: up to 20,000 requests",
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_sections(cls, values: Any) -> Any:
        """Use the defaults of a section whose keys are all commented out, which YAML reads as
        null."""
        optional = (
            *("hardware", "engine", "kv", "offload", "lora", "pool", "pools", "kv_transfer"),
            *("startup", "slo"),
        )
        if not isinstance(values, dict):
            return values
        return {k: v for k, v in values.items() if v is not None or k not in optional}

    @model_validator(mode="after")
    def _pools_agree(self) -> Self:
        names = [pool.name for pool in self.pools]
        unknown = [
            name for name in (self.prices.by_pool if self.prices else ()) if name not in names
        ]
        if unknown:
            known = ", ".join(names) or "this scenario has none"
            raise ValueError(
                f"prices.by_pool: there is no pool called {unknown[0]!r}; pools: {known}"
            )
        if self.pools and "replicas" in self.pool.model_fields_set and self.pool.replicas > 1:
            raise ValueError(
                f"pool.replicas ({self.pool.replicas}) is of a fleet without pools; say replicas "
                "of each of the pools"
            )
        return self
