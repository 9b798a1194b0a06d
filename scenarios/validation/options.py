"""Engine options that change what a step costs and are not modelled: refused, or warned of."""

from __future__ import annotations

from costmodels.models.spec import DTYPE_BYTES
from scenarios.validation.fields import InfoFields

FP8_KV_CACHE = ("fp8", "fp8_e4m3")

# What the option would do to the steps, where it is given at all.
_REFUSED = {
    "speculative_config": "a step would give one token a sequence",
    "kv_transfer_config": "the transfer would take no time",
}
_REFUSED_ABOVE_ONE = (
    "pipeline_parallel_size",
    "data_parallel_size",
    "decode_context_parallel_size",
)
_WARNED = {
    "enable_lora": "adapters are not priced",
    "cpu_offload_gb": "offloaded weights are not priced",
}
_WARNED_ABOVE = {
    "long_prefill_token_threshold": (0, "long prompts are chunked by the token budget alone"),
    "max_num_partial_prefills": (1, "partial prefills are limited by the token budget alone"),
    "watermark_blocks": (0, "requests are admitted down to the last free block"),
    "num_lookahead_tokens": (0, "no block is held for tokens ahead"),
}


def refuse_options(fields: InfoFields) -> None:
    """Raises ScenarioError for an option with which a prediction would mislead."""
    for name, otherwise in _REFUSED.items():
        value = fields.argument(name)
        if value is not None:
            raise fields.error(name, f"is {value!r}, which is not modelled: {otherwise}")
    quantization = fields.argument("quantization")
    if quantization not in (None, "fp8"):
        raise fields.error("quantization", f"is {quantization!r}; fp8 is priced, or none")
    dtype = str(fields.argument("dtype") or "auto").removeprefix("torch.")
    if dtype != "auto" and dtype not in DTYPE_BYTES:
        raise fields.error("dtype", f"is {dtype!r}; priced are {' and '.join(DTYPE_BYTES)}")
    for name in _REFUSED_ABOVE_ONE:
        if fields.count(name, 1) > 1:
            raise fields.error(name, f"is {fields.count(name)}, which is not modelled; use 1")


def warn_of_options(fields: InfoFields) -> list[str]:
    """A line for each option that is predicted as if it were not set."""
    lines = []
    for name, instead in _WARNED.items():
        value = fields.argument(name)
        if value not in (None, False, "False", 0, "0", "0.0"):
            lines.append(f"{name} is {value}: {instead}")
    for name, (most, instead) in _WARNED_ABOVE.items():
        if fields.number(name, most) > most:
            lines.append(f"{name} is {fields.argument(name)}: {instead}")
    policy = str(fields.argument("policy") or "fcfs")
    if policy != "fcfs":
        lines.append(f"policy is {policy}: requests are scheduled first come, first served")
    if not fields.flag("chunked_prefill", True):
        lines.append("chunked_prefill is off: prompts are predicted cut to the token budget")
    backends = fields.argument("attention_backends") or []
    if isinstance(backends, list) and any("FLASH_ATTN" not in str(name) for name in backends):
        lines.append(f"attention backend {', '.join(map(str, backends))}: priced as FlashAttention")
    lines += _kv_cache_lines(fields)
    return lines


def _kv_cache_lines(fields: InfoFields) -> list[str]:
    name = str(fields.argument("kv_cache_dtype") or "auto")
    if name == "auto" or name in DTYPE_BYTES or name in FP8_KV_CACHE:
        return []
    return [
        f"kv_cache_dtype is {name}: the KV cache is priced with 16 bits, so that attention reads "
        "come out up to twice as long and the memory plan holds half the blocks"
    ]
