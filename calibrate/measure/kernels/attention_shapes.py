"""Attention heads that are measured: those of one rank, by model and tensor parallelism."""

from __future__ import annotations

from typing import NamedTuple


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
