"""The attention heads that are measured: one rank's, by model and tensor parallelism."""

from __future__ import annotations

from typing import NamedTuple


class Heads(NamedTuple):
    """Query and KV heads of one rank; ``window`` 0: full attention."""

    q_heads: int
    kv_heads: int
    head_dim: int
    window: int = 0

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.q_heads // self.kv_heads


LLAMA_8B = (Heads(32, 8, 128), Heads(16, 4, 128), Heads(8, 2, 128))
"""At TP 1, 2, 4. Llama 70B at TP 2 and 4 has as many KV heads, and twice the query heads."""
LLAMA_70B = (Heads(16, 2, 128), Heads(8, 1, 128))
"""At TP 4, 8."""
QWEN3_30B_A3B = (Heads(32, 4, 128),)
GPT_OSS = (Heads(64, 8, 64), Heads(64, 8, 64, 128))
"""gpt-oss-20b and -120b: every second layer looks at the last 128 tokens."""
GEMMA3_12B = (Heads(16, 8, 256), Heads(16, 8, 256, 1024))
"""One layer in six looks at everything, the others at the last 1,024 tokens."""

FULL = (*LLAMA_8B, *LLAMA_70B, *QWEN3_30B_A3B, GPT_OSS[0], GEMMA3_12B[0])
WINDOWED = (GPT_OSS[1], GEMMA3_12B[1])


def seen(tokens: int, window: int) -> int:
    """Of ``tokens``, those that the last one looks at, itself included."""
    return min(tokens, window) if window else tokens


def causal_pairs(tokens: int, window: int) -> int:
    """Query-key pairs of ``tokens`` tokens that each look at themselves and those before."""
    full = seen(tokens, window)
    return full * (full + 1) // 2 + (tokens - full) * window
