"""Command line of an observation, for a machine that has this checkout and nothing else."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibrate.servers.client import Server
from calibrate.servers.design import LARGEST_CONCURRENCY
from calibrate.servers.observe import Observer, plan_lines, save_observation
from sim.errors import FleetcastError

API_KEY = "OPENAI_API_KEY"


def main(argv: Sequence[str] | None = None) -> int:
    """Observe a server, and return the exit code: 0 done, 2 a server that cannot be used."""
    options = _parser().parse_args(argv)
    try:
        for line in plan_lines(options.max_model_len, options.max_concurrency):
            print(line, file=sys.stderr)
        if options.dry_run:
            return 0
        observe_server(
            options.url,
            options.model,
            options.out,
            vocab_size=options.vocab_size,
            max_model_len=options.max_model_len,
            max_concurrency=options.max_concurrency,
            seed=options.seed,
        )
    except FleetcastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def observe_server(
    url: str,
    model: str,
    out: Path,
    *,
    vocab_size: int,
    max_model_len: int,
    max_concurrency: int,
    seed: int,
    about: dict[str, Any] | None = None,
) -> None:
    """Send the designed load, and write what was seen to ``out``. Raises `ServerError`."""
    server = Server(url=url, model=model, api_key=os.environ.get(API_KEY))
    served = server.check()
    if model not in served:
        raise FleetcastError(f"{url} does not serve {model!r}; it serves {', '.join(served)}")
    observer = Observer(server, vocab_size, seed=seed, say=_say)
    found = observer.observe(max_model_len, max_concurrency)
    save_observation(found, {"url": url, "model": model, **(about or {})}, out)
    _say(f"observed: {out}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m calibrate.servers",
        description="Observe a server with an OpenAI-compatible API under a designed load.",
        epilog=f"A key for the server is read from {API_KEY}.",
    )
    add = parser.add_argument
    add("--url", required=True, help="the server's root, such as http://localhost:8000")
    add("--model", required=True, help="the name that it serves the model under")
    add("--out", type=Path, required=True, metavar="FILE.json", help="the file to write")
    add("--vocab-size", type=int, default=32000, metavar="N", help="of the model; default: 32000")
    add("--max-model-len", type=int, default=8192, metavar="N", help="default: 8192")
    add("--max-concurrency", type=int, default=LARGEST_CONCURRENCY, metavar="N", help="clients")
    add("--seed", type=int, default=0, metavar="N", help="of the prompts and arrivals")
    add("--dry-run", action="store_true", help="only say what would be sent")
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
