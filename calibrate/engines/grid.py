"""Grids of engine steps to measure: which batches, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

GRIDS = ("compact", "full")


@dataclass(frozen=True, slots=True)
class GridPoint:
    """One kind of step; a prompt's tokens are new tokens, on ``context`` cached ones each."""

    kind: str
    """decode, prefill, extend, multiprefill or mixed, as `fleetcast validate` knows them."""
    decodes: int = 0
    """Sequences that decode a token each."""
    context: int = 0
    """Cached tokens of each decoding sequence, or of the prompt of an extend."""
    prompts: int = 0
    prompt_tokens: int = 0
    """New tokens of each prompt."""

    @property
    def parameters(self) -> dict[str, int]:
        """Return the point's numbers by the letters of the recording's files."""
        prompt, context, decodes = self.prompt_tokens, self.context, self.decodes
        return {
            "decode": {"B": decodes, "L": context},
            "prefill": {"P": prompt},
            "extend": {"P": prompt, "C": context},
            "multiprefill": {"N": self.prompts, "P": prompt},
            "mixed": {"D": decodes, "L": context, "P": prompt},
        }[self.kind]

    @property
    def name(self) -> str:
        """Return the name of the point's steps in a step log, such as ``decode_B8_L1024``."""
        if self.kind == "multiprefill":
            return f"multiprefill_{self.prompts}x{self.prompt_tokens}"
        return "_".join([self.kind, *(f"{k}{v}" for k, v in self.parameters.items())])

    @property
    def held_tokens(self) -> list[int]:
        """Return the tokens that each sequence of the point holds in the KV cache, at most."""
        return [self.context + 1] * self.decodes + [self.prompt_tokens] * self.prompts


def grid_points(grid: str) -> list[GridPoint]:
    """Return the points of a grid, those that matter most first, so that a cut run is of use."""
    return list(_full() if grid == "full" else _compact())


def _decodes(batches: tuple[int, ...], contexts: tuple[int, ...]) -> Iterator[GridPoint]:
    for context in contexts:
        for batch in batches:
            yield GridPoint("decode", decodes=batch, context=context)


def _prefills(lengths: tuple[int, ...]) -> Iterator[GridPoint]:
    for tokens in lengths:
        yield GridPoint("prefill", prompts=1, prompt_tokens=tokens)


def _extends(lengths: tuple[int, ...], contexts: tuple[int, ...]) -> Iterator[GridPoint]:
    for context in contexts:
        for tokens in lengths:
            yield GridPoint("extend", context=context, prompts=1, prompt_tokens=tokens)


def _mixed(
    batches: tuple[int, ...], contexts: tuple[int, ...], lengths: tuple[int, ...]
) -> Iterator[GridPoint]:
    for batch in batches:
        for context in contexts:
            for tokens in lengths:
                yield GridPoint("mixed", batch, context, 1, tokens)


def _compact() -> Iterator[GridPoint]:
    yield from _decodes((1, 4, 8, 32, 128), (1024, 8192))
    yield from _prefills((128, 256, 512, 1024, 2048, 4096, 8192))
    yield from _extends((512, 2048), (4096, 16384))
    yield GridPoint("multiprefill", prompts=4, prompt_tokens=512)
    yield GridPoint("multiprefill", prompts=32, prompt_tokens=256)
    yield from _mixed((32, 128), (1024,), (512, 2048))


def _full() -> Iterator[GridPoint]:
    yield from _decodes((1, 2, 4, 8, 16, 32, 64, 128, 256), (128, 1024, 4096, 16384))
    yield from _prefills((128, 256, 512, 1024, 2048, 4096, 8192))
    yield from _extends((16, 512, 2048), (1024, 4096, 16384))
    for prompts, tokens in ((4, 512), (8, 1024), (32, 256), (4, 2048)):
        yield GridPoint("multiprefill", prompts=prompts, prompt_tokens=tokens)
    yield from _mixed((32, 128), (1024, 4096), (128, 512, 1024, 2048, 4096, 8000))
