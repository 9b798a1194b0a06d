"""What attention is measured on: heads of one rank, by model and tensor parallelism, and a pool of
KV blocks that cases share, as an engine's requests do, because filling it is slow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class Heads(NamedTuple):
    """Query and KV heads of one rank; ``window`` 0 means full attention."""

    q_heads: int
    kv_heads: int
    head_dim: int
    window: int = 0

    @property
    def group(self) -> int:
        """Return the number of query heads that share a KV head."""
        return self.q_heads // self.kv_heads


LLAMA_8B = (Heads(32, 8, 128), Heads(16, 4, 128), Heads(8, 2, 128))
"""Llama-3.1-8B at TP 1, 2, 4. Llama 70B at TP 2 and 4 has equally many KV heads, and twice the
query heads."""
LLAMA_70B = (Heads(16, 2, 128), Heads(8, 1, 128))
"""Llama 70B at TP 4, 8."""
QWEN3_30B_A3B = (Heads(32, 4, 128),)
GPT_OSS = (Heads(64, 8, 64), Heads(64, 8, 64, 128))
"""gpt-oss-20b and -120b: every second layer attends to the last 128 tokens."""
GEMMA3_12B = (Heads(16, 8, 256), Heads(16, 8, 256, 1024))
"""Gemma 3 12B: one layer in six attends to all tokens, the others to the last 1,024."""

FULL = (*LLAMA_8B, *LLAMA_70B, *QWEN3_30B_A3B, GPT_OSS[0], GEMMA3_12B[0])
WINDOWED = (GPT_OSS[1], GEMMA3_12B[1])


def seen(tokens: int, window: int) -> int:
    """Return how many of ``tokens`` the last one attends to, including itself."""
    return min(tokens, window) if window else tokens


def causal_pairs(tokens: int, window: int) -> int:
    """Return the query-key pairs of ``tokens`` tokens that each attend to themselves and those
    before."""
    full = seen(tokens, window)
    return full * (full + 1) // 2 + (tokens - full) * window


_CHUNK_NUMBERS = 2**28
MOST_NUMBERS = 112 * _CHUNK_NUMBERS
"""Most numbers of keys and values in one call: 60 GB in 16 bits."""
_CPU_NUMBERS = 2**24
_DTYPES = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "fp8": "float8_e4m3fn",
}
# Pools by format and device.
_held: dict[tuple[str, str], Any] = {}


@dataclass(frozen=True, slots=True)
class Pool:
    """Random numbers in ``parts`` equal regions (keys and values, or latents alone)."""

    regions: Any
    """Tensor [parts, numbers]."""
    block_numbers: int

    @property
    def num_blocks(self) -> int:
        return int(self.regions.shape[1]) // self.block_numbers

    def blocks(self, part: int, *shape: int) -> Any:
        """Return region ``part`` as [num_blocks, *shape]."""
        numbers = self.num_blocks * self.block_numbers
        return self.regions[part, :numbers].view(self.num_blocks, *shape)

    def tables(self, copies: int, seqs: int, blocks: int, draw: Any) -> Any:
        """Return block tables, int32 [copies, seqs, blocks], with distinct blocks of the pool in
        random order.

        Raises `ValueError` if the pool has too few blocks.
        """
        import torch

        wanted = copies * seqs * blocks
        if wanted > self.num_blocks:
            raise ValueError(f"{wanted} KV blocks, where the pool has {self.num_blocks}")
        order = torch.randperm(self.num_blocks, generator=draw, device=self.regions.device)
        return order[:wanted].to(torch.int32).view(copies, seqs, blocks)


def shared_pool(number_format: str, parts: int, block_numbers: int, device: str) -> Pool:
    """Return the pool in a format, with `MOST_NUMBERS` numbers or half of the free memory if
    that is less."""
    if (number_format, device) not in _held:
        _held[number_format, device] = _filled(number_format, device)
    numbers = _held[number_format, device]
    return Pool(numbers[: len(numbers) // parts * parts].view(parts, -1), block_numbers)


def _filled(number_format: str, device: str) -> Any:
    """Return normally distributed numbers, drawn in bfloat16 for formats that cannot be drawn
    directly."""
    import torch

    dtype = getattr(torch, _DTYPES[number_format])
    numbers = _CPU_NUMBERS
    if device != "cpu":
        torch.cuda.empty_cache()
        most = torch.cuda.mem_get_info()[0] // 2 // dtype.itemsize
        # Whole chunks, because kernels load 16 bytes at a time from the second region too.
        numbers = min(MOST_NUMBERS, most) // _CHUNK_NUMBERS * _CHUNK_NUMBERS
    draw = torch.Generator(device).manual_seed(0)
    pool = torch.empty(numbers, dtype=dtype, device=device)
    drawn = torch.bfloat16 if number_format == "fp8" else dtype
    for at in range(0, numbers, _CHUNK_NUMBERS):
        size = min(_CHUNK_NUMBERS, numbers - at)
        chunk = torch.randn(size, dtype=drawn, device=device, generator=draw)
        pool[at : at + size].copy_(chunk)
    return pool
