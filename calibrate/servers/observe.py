"""Send the designed load to a server, and keep what was seen."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrate.servers.client import Answer, Server, ServerError
from calibrate.servers.design import LARGEST_CONCURRENCY, Phase, closed_phases, poisson_phases
from sim.errors import TraceError

FORMAT = "fleetcast-observation-1"
_POISSON_S = 30.0
_SLOWEST_TTFT_S = 20.0
_LEAST_GAIN = 1.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One phase, and how the server answered it, in order of sending."""

    phase: Phase
    answers: tuple[Answer, ...]

    @property
    def served_per_s(self) -> float:
        """Requests finished a second, from the first sending to the last part."""
        start_s = min(answer.sent_s for answer in self.answers)
        return len(self.answers) / (max(answer.last_s for answer in self.answers) - start_s)

    @property
    def output_tokens_per_s(self) -> float:
        """Tokens given a second, over the same time."""
        tokens = sum(answer.output_tokens for answer in self.answers)
        return self.served_per_s * tokens / len(self.answers)


class Observer:
    """Sends phases to one server. Prompts are random, so that no cached prefix serves them."""

    def __init__(
        self, server: Server, vocab_size: int, *, seed: int, say: Callable[[str], None]
    ) -> None:
        self._server = server
        self._draws = random.Random(seed)
        self._token_ids = range(100, max(101, vocab_size - 1000))
        self._takes_ids = True
        self._say = say

    def observe(self, max_model_len: int, max_concurrency: int) -> list[Observed]:
        """Send all phases, from the lightest; stop adding clients where the server is full.

        Raises `ServerError` if the server does not answer.
        """
        self._settle()
        found: list[Observed] = []
        for phase in closed_phases(max_model_len, max_concurrency):
            if phase.name.startswith(("batch", "mixed")) and self._is_full(found):
                self._say(f"{phase.name} is left out: more clients no longer get more served")
                continue
            found.append(self._send(phase))
        mixed = [one.served_per_s for one in found if one.phase.name.startswith("mixed")]
        draws = [self._draws.random() for _ in range(3 * 10_000)]
        for phase in poisson_phases(max(mixed), _POISSON_S, draws) if mixed else ():
            found.append(self._send(phase))
        return found

    def _settle(self) -> None:
        """Find out how prompts are sent, and let the server meet the sizes of its kernels."""
        try:
            self._server.complete(self._prompt(16), 2)
        except ServerError as error:
            if "answers 4" not in str(error):
                raise
            self._takes_ids = False
            self._server.complete(self._prompt(16), 2)
        for tokens in (32, 256, 1024, 3000):
            self._server.complete(self._prompt(tokens), 4)
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda _: self._server.complete(self._prompt(64), 16), range(32)))

    def _is_full(self, found: list[Observed]) -> bool:
        """Whether the last batch gave no more than the one before, or made clients wait."""
        rates = [one for one in found if one.phase.name.startswith("batch")]
        if not rates:
            return False
        waits_s = sorted(answer.ttft_s for answer in rates[-1].answers)
        if waits_s[len(waits_s) // 2] > _SLOWEST_TTFT_S:
            return True
        gained = [one.output_tokens_per_s for one in rates[-2:]]
        return len(gained) == 2 and gained[1] < _LEAST_GAIN * gained[0]

    def _send(self, phase: Phase) -> Observed:
        prompts = [self._prompt(prompt) for prompt, _ in phase.lengths]
        outputs = [output for _, output in phase.lengths]
        workers = phase.concurrency or min(LARGEST_CONCURRENCY, len(prompts))
        start_s = time.perf_counter() + 0.05

        def send(place: int) -> Answer:
            if phase.arrivals_s:
                time.sleep(max(0.0, start_s + phase.arrivals_s[place] - time.perf_counter()))
            return self._server.complete(prompts[place], outputs[place])

        with ThreadPoolExecutor(workers) as pool:
            answers = list(pool.map(send, range(len(prompts))))
        if phase.concurrency:  # clients take the requests in order, but may send out of it
            answers.sort(key=lambda answer: answer.sent_s)
        one = Observed(phase=phase, answers=tuple(answers))
        ttft_s = sorted(answer.ttft_s for answer in answers)[len(answers) // 2]
        self._say(
            f"{phase.name}: {len(answers)} answers, TTFT p50 {1e3 * ttft_s:.1f} ms, "
            f"{one.output_tokens_per_s:,.0f} tokens/s"
        )
        return one

    def _prompt(self, tokens: int) -> list[int] | str:
        first, size = self._token_ids.start, len(self._token_ids)
        ids = [first + int(self._draws.random() * size) for _ in range(tokens)]
        return ids if self._takes_ids else " ".join(_word(one) for one in ids)


def _word(number: int) -> str:
    """Return a short word of letters for a number, about one token long."""
    return "".join(chr(97 + number // 26**place % 26) for place in range(2))


def plan_lines(max_model_len: int, max_concurrency: int) -> list[str]:
    """Say what will be sent, before anything is."""
    phases = closed_phases(max_model_len, max_concurrency)
    requests = sum(len(phase.lengths) for phase in phases)
    prompts, outputs = (
        sum(getattr(phase, name) for phase in phases) for name in ("prompt_tokens", "output_tokens")
    )
    clients = max(phase.concurrency for phase in phases)
    return [
        f"will be sent: {len(phases)} phases of {requests:,} requests, {prompts:,} prompt tokens "
        f"and {outputs:,} output tokens,",
        f"by 1 to {clients} clients, each waiting for its answers, the lightest first; more "
        "clients only while that serves more;",
        f"then Poisson arrivals at 30% and 60% of the rate seen, {_POISSON_S:g} s each. "
        "In all about three minutes on a fast server.",
        "Prompts are random tokens. Other users of the server would wait, and their requests would "
        "blur what is measured.",
    ]


def save_observation(found: list[Observed], about: dict[str, Any], path: Path) -> None:
    """Write what was seen, with times from each phase's first sending."""
    phases = []
    for one in found:
        start_s = min(answer.sent_s for answer in one.answers)
        phases.append(
            {
                "name": one.phase.name,
                "concurrency": one.phase.concurrency,
                "held_out": one.phase.held_out,
                "arrivals_s": [round(time_s, 6) for time_s in one.phase.arrivals_s],
                "answers": [_as_row(answer, start_s) for answer in one.answers],
            }
        )
    content = {"format": FORMAT, **about, "phases": phases}
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")


def _as_row(answer: Answer, start_s: float) -> dict[str, Any]:
    return {
        "sent_s": round(answer.sent_s - start_s, 6),
        "prompt_tokens": answer.prompt_tokens,
        "output_tokens": answer.output_tokens,
        "first_s": round(answer.first_s - start_s, 6),
        "last_s": round(answer.last_s - start_s, 6),
        "chunks_100us": [round((time_s - answer.first_s) * 1e4) for time_s in answer.chunk_s],
    }


def load_observation(path: Path) -> tuple[list[Observed], dict[str, Any]]:
    """Read what `save_observation` wrote. Raises `TraceError` naming the file and what is wrong."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.get("format") != FORMAT:
            raise TraceError(
                f"{path}: not an observation; `fleetcast calibrate observe` writes them"
            )
        found = [_observed(row) for row in content["phases"]]
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TraceError(f"{path}: a damaged observation ({error!r})") from None
    return found, {name: content[name] for name in content if name not in ("format", "phases")}


def _observed(row: dict[str, Any]) -> Observed:
    answers = tuple(
        Answer(
            sent_s=one["sent_s"],
            prompt_tokens=one["prompt_tokens"],
            output_tokens=one["output_tokens"],
            first_s=one["first_s"],
            last_s=one["last_s"],
            chunk_s=[one["first_s"] + part / 1e4 for part in one["chunks_100us"]],
        )
        for one in row["answers"]
    )
    phase = Phase(
        name=row["name"],
        concurrency=row["concurrency"],
        lengths=tuple((answer.prompt_tokens, answer.output_tokens) for answer in answers),
        arrivals_s=tuple(row["arrivals_s"]),
        held_out=row["held_out"],
    )
    return Observed(phase=phase, answers=answers)
