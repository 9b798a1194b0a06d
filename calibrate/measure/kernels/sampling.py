"""Measure sampling of the next token of each sequence from its logits [rows, vocab], through torch.

``greedy`` takes the largest logit. ``random`` takes softmax in float32, then the largest ratio of
probability to exponential noise, which draws by probability without a sum. ``top_p`` first sorts
the logits and cuts them at cumulative probability p. Logits come in the activations' format and are
converted first, as engines do. Noise and sorting are not captured in graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from calibrate.measure.case import Case, Prepared, num_copies, relative_error
from calibrate.measure.machine import l2_bytes

TOLERANCE = {"float32": 1e-4, "bfloat16": 1e-4}

_TOP_P = 0.9
_VOCABS = (32000, 128256, 151936, 201088)
_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_CPU_ROWS = (4, 16)
_OPS = ("greedy", "random", "top_p")
_SIZES = {"float32": 4, "bfloat16": 2}


def cases(quick: bool, device: str) -> Iterator[Case]:
    """Yield each op by vocabulary and number of sequences."""
    vocabs = (32000,) if device == "cpu" else (128256,) if quick else _VOCABS
    for op in _OPS:
        for vocab in vocabs:
            for rows in _CPU_ROWS if device == "cpu" else _ROWS[::5] if quick else _ROWS:
                yield Case(
                    family="sampling",
                    kernel="torch",
                    formats={"activations": "float32" if device == "cpu" else "bfloat16"},
                    shape={"op": op, "rows": rows, "vocab": vocab},
                )


def work(case: Case) -> tuple[float, float]:
    """Return a few FLOPs per logit, and bytes of the logits read and the token ids written."""
    rows, vocab = int(case.shape["rows"]), int(case.shape["vocab"])
    return 4.0 * rows * vocab, float(rows * (vocab * _SIZES[case.formats["activations"]] + 8))


def prepare(case: Case, device: str, seed: int) -> Prepared:
    """Prepare random logits, peaked enough that the cut at p keeps a few hundred tokens."""
    import torch

    draw = torch.Generator(device).manual_seed(seed)
    rows, vocab = int(case.shape["rows"]), int(case.shape["vocab"])
    dtype = getattr(torch, case.formats["activations"])
    flops, num_bytes = work(case)
    logits = [
        3 * torch.randn(rows, vocab, device=device, dtype=dtype, generator=draw)
        for _ in range(num_copies(num_bytes, l2_bytes(device)))
    ]
    sampler = _SAMPLERS[str(case.shape["op"])](rows, vocab, device, draw)

    def bound(some: Any) -> Callable[[], object]:
        return lambda: sampler.sample(some)

    return Prepared(
        calls=[bound(some) for some in logits],
        error=lambda: sampler.error(logits[0]),
        flops=flops,
        num_bytes=num_bytes,
        graphable=case.shape["op"] == "greedy",
    )


class Greedy:
    """Chooses the token ids of the largest logits."""

    def __init__(self, rows: int, vocab: int, device: str, draw: Any) -> None:
        import torch

        self.tokens = torch.empty(rows, device=device, dtype=torch.int64)

    def sample(self, logits: Any) -> None:
        """Write the chosen token ids to ``tokens``."""
        import torch

        torch.argmax(logits.float(), dim=-1, out=self.tokens)

    def error(self, logits: Any) -> float:
        """Return the relative error of the chosen logits against the largest. Equal logits are
        equally right."""
        self.sample(logits)
        chosen = logits.float().gather(1, self.tokens[:, None])
        return relative_error(chosen, logits.float().amax(1, keepdim=True))


class Random(Greedy):
    """Draws token ids by probability."""

    def __init__(self, rows: int, vocab: int, device: str, draw: Any) -> None:
        import torch

        super().__init__(rows, vocab, device, draw)
        self._draw = draw
        self.noise = torch.empty(rows, vocab, device=device, dtype=torch.float32)

    def sample(self, logits: Any) -> None:
        """Write the drawn token ids to ``tokens``, and keep the noise for the check."""
        self._race(logits.float())

    def _race(self, logits: Any) -> None:
        import torch

        self.noise.exponential_(generator=self._draw)
        torch.argmax(logits.softmax(-1).div_(self.noise), dim=-1, out=self.tokens)

    def error(self, logits: Any) -> float:
        """Return the relative error of probability over noise at the chosen tokens, against the
        largest.

        The boundary of what may be chosen can lie among equal logits, any of which may be in or
        out.
        """
        import torch

        self.sample(logits)
        sure, possible = self.choices(logits.double())
        raced = logits.double().softmax(-1) / self.noise.double()
        chosen = (raced * possible).gather(1, self.tokens[:, None])
        return relative_error(chosen, torch.maximum(chosen, (raced * sure).amax(1, keepdim=True)))

    def choices(self, logits: Any) -> tuple[Any, Any]:
        """Return which tokens are certainly allowed, and which possibly: masks [rows, vocab]."""
        every = logits == logits
        return every, every


class TopP(Random):
    """Draws token ids from the fewest tokens that have probability p together."""

    def sample(self, logits: Any) -> None:
        """Write the drawn token ids to ``tokens``. Logits are sorted ascending, so that the
        first are cut."""
        ordered, ids = logits.float().sort(dim=-1)
        cut = ordered.softmax(-1).cumsum(-1) <= 1 - _TOP_P
        cut[:, -1] = False
        ordered.masked_fill_(cut, float("-inf"))
        self._race(ordered.scatter(-1, ids, ordered))

    def choices(self, logits: Any) -> tuple[Any, Any]:
        """Return the allowed tokens: those preceded by tokens with less than p together."""
        ordered, _ = logits.sort(dim=-1, descending=True)
        probabilities = ordered.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities
        edges = [
            ordered.gather(1, (before < _TOP_P + slack).sum(1, keepdim=True) - 1)
            for slack in (-1e-5, 1e-5)
        ]
        return logits > edges[0], logits >= edges[1]


_SAMPLERS = {"greedy": Greedy, "random": Random, "top_p": TopP}
