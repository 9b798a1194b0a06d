"""A small OpenAI-compatible server with a known law of latencies."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol


class FakeEngine:
    """Every answer takes ``prefill_s_per_token`` x prompt and ``step_s`` a token, and a fixed time.

    Steps are common to all requests: ``step_s`` plus ``step_s_per_seq`` for each one under way.
    """

    def __init__(
        self,
        *,
        fixed_s: float = 0.004,
        prefill_s_per_token: float = 10e-6,
        step_s: float = 0.004,
        step_s_per_seq: float = 20e-6,
    ) -> None:
        self.fixed_s = fixed_s
        self.prefill_s_per_token = prefill_s_per_token
        self.step_s = step_s
        self.step_s_per_seq = step_s_per_seq
        self.num_running = 0
        self.bodies: list[dict[str, Any]] = []
        self.takes_token_ids = True
        self._counting = threading.Lock()
        self._gpu = threading.Lock()

    def answer(self, body: dict[str, Any], tokens: int) -> Iterator[None]:
        """Yield once for each token of the answer, when it is there."""
        self.bodies.append(body)
        with self._counting:
            self.num_running += 1
        time.sleep(self.fixed_s)
        with self._gpu:  # prompts are computed one after another
            time.sleep(tokens * self.prefill_s_per_token)
        yield
        for _ in range(body["max_tokens"] - 1):
            time.sleep(self.step_s + self.step_s_per_seq * self.num_running)
            yield
        with self._counting:
            self.num_running -= 1


class Answers(Protocol):
    """What a stand-in serves."""

    takes_token_ids: bool

    def answer(self, body: dict[str, Any], tokens: int) -> Iterator[None]:
        """Yield once for each token of the answer, when it is there."""
        ...


@contextmanager
def running(engine: Answers) -> Iterator[str]:
    """Serve ``engine`` on a free port; the value is the URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._plain(200, {"data": [{"id": "tiny"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompt = body["prompt"]
            if not engine.takes_token_ids and not isinstance(prompt, str):
                self._plain(400, {"error": {"message": "prompt must be text"}})
                return
            tokens = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for _ in engine.answer(body, tokens):
                self._event({"choices": [{"text": "", "index": 0}]})
            usage = {"prompt_tokens": tokens, "completion_tokens": body["max_tokens"]}
            self._event({"choices": [], "usage": usage})
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")

        def _event(self, content: dict[str, Any]) -> None:
            self._chunk(b"data: " + json.dumps(content).encode() + b"\n\n")

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

        def _plain(self, status: int, content: dict[str, Any]) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
