"""The load that a server is observed under: phases, from the lightest to the heaviest.

The phases of each kind come in pairs of neighboring sizes: constants are fitted to one of each
pair, and judged by the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

LARGEST_CONCURRENCY = 256
_POISSON_SHARES = (0.3, 0.6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Requests of one kind, sent by a number of clients that each wait for their answer."""

    name: str
    concurrency: int
    lengths: tuple[tuple[int, int], ...]
    """Prompt and output tokens of each request, in the order in which they are sent."""
    arrivals_s: tuple[float, ...] = ()
    """Times to send at instead, whatever is under way."""
    held_out: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(prompt for prompt, _ in self.lengths)

    @property
    def output_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(output for _, output in self.lengths)


def closed_phases(max_model_len: int, max_concurrency: int) -> list[Phase]:
    """Return the phases in which clients wait for answers, lightest first.

    Lengths are kept below ``max_model_len``, and phases of more clients than ``max_concurrency``
    are left out.
    """
    phases = [
        phase
        for phase in (*_lone_prompts(), *_lone_decodes(), *_batches(), *_mixtures())
        if phase.concurrency <= min(max_concurrency, LARGEST_CONCURRENCY)
    ]
    return [phase for phase in phases if max(map(sum, phase.lengths)) < max_model_len]


def _lone_prompts() -> Iterator[Phase]:
    """Prompts on an idle server: prefill, and what one request costs beside it."""
    for tokens, held_out in ((64, False), (256, True), (1024, False), (2048, True), (4096, False)):
        yield Phase(
            name=f"prompt_{tokens}", concurrency=1, lengths=((tokens, 1),) * 8, held_out=held_out
        )


def _lone_decodes() -> Iterator[Phase]:
    """One answer at a time: the weights' reads, at two lengths of context."""
    for context, held_out in ((128, False), (3000, True)):
        yield Phase(
            name=f"decode_1x{context}",
            concurrency=1,
            lengths=((context, 128),) * 3,
            held_out=held_out,
        )


def _batches() -> Iterator[Phase]:
    """Equal requests of several clients: decode steps of growing batches."""
    for clients, held_out in ((4, True), (16, False), (32, True), (64, False), (128, True)):
        yield Phase(
            name=f"batch_{clients}",
            concurrency=clients,
            lengths=((256, 160),) * (2 * clients),
            held_out=held_out,
        )


def _mixtures() -> Iterator[Phase]:
    """Long and short prompts among decodes."""
    for clients, held_out in ((8, False), (24, True)):
        mixed = ((200, 120), (2000, 60), (600, 100))
        yield Phase(
            name=f"mixed_{clients}",
            concurrency=clients,
            lengths=mixed * (3 * clients // len(mixed)),
            held_out=held_out,
        )


def poisson_phases(served_per_s: float, window_s: float, draws: list[float]) -> list[Phase]:
    """Return the phases with arrivals of their own, at shares of the highest rate seen.

    ``draws``, uniform from 0 to 1, give the gaps and the lengths; three for each request.
    """
    phases = []
    for share in _POISSON_SHARES:
        rate_per_s = share * served_per_s
        arrivals, lengths, time_s = [], [], 0.0
        for gap, prompt, output in zip(draws[::3], draws[1::3], draws[2::3], strict=True):
            time_s += _exponential(gap) / rate_per_s
            if time_s > window_s:
                break
            arrivals.append(time_s)
            lengths.append((round(64 * 32**prompt), round(16 * 16**output)))
        phases.append(
            Phase(
                name=f"poisson_{round(100 * share)}pct",
                concurrency=0,
                lengths=tuple(lengths),
                arrivals_s=tuple(arrivals),
                held_out=True,
            )
        )
    return [phase for phase in phases if phase.lengths]


def _exponential(draw: float) -> float:
    from math import log

    return -log(1.0 - draw)
