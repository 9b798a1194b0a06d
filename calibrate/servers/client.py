"""Send one request to an OpenAI-compatible server, and note when each part of its answer came."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from sim.errors import FleetcastError

_DATA = b"data:"
_DONE = b"[DONE]"


class ServerError(FleetcastError):
    """A server that cannot be reached, or that refuses what it is sent."""


@dataclass(slots=True)
class Answer:
    """How a server answered one request; times are of one clock, in seconds."""

    sent_s: float
    prompt_tokens: int
    """As the server counts them, or as they were sent if it does not say."""
    output_tokens: int
    first_s: float
    last_s: float
    chunk_s: list[float] = field(default_factory=list)
    """When each part with content came; a part may hold several tokens."""

    @property
    def ttft_s(self) -> float:
        """Time from sending to the first part."""
        return self.first_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time between tokens; None for an answer of one token."""
        if self.output_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.output_tokens - 1)

    @property
    def e2e_s(self) -> float:
        """Time from sending to the last part."""
        return self.last_s - self.sent_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where a server is, and how it is spoken to."""

    url: str
    """Its root, such as ``http://localhost:8000``; a path in front of ``/v1`` is kept."""
    model: str
    """The name that it serves the model under."""
    api_key: str | None = None
    timeout_s: float = 300.0

    def check(self) -> list[str]:
        """Return the names of the models that it serves. Raises `ServerError`."""
        status, text = self._get("/v1/models")
        if status != http.client.OK:
            raise ServerError(f"{self.url}/v1/models answers {status}: {text[:200]}")
        try:
            return [str(one["id"]) for one in json.loads(text)["data"]]
        except (ValueError, KeyError, TypeError):
            raise ServerError(f"{self.url}/v1/models does not list models: {text[:200]}") from None

    def complete(self, prompt: list[int] | str, output_tokens: int) -> Answer:
        """Send a prompt and read the whole answer. Raises `ServerError`."""
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            # vLLM's and SGLang's; other servers may end answers earlier, and say so in the usage.
            "ignore_eos": True,
        }
        connection = self._connect()
        try:
            payload = json.dumps(body).encode()
            connection.connect()
            sent_s = time.perf_counter()
            connection.request("POST", self._path("/v1/completions"), payload, self._headers())
            response = connection.getresponse()
            if response.status != http.client.OK:
                text = response.read(500).decode(errors="replace")
                raise ServerError(f"{self.url} answers {response.status}: {text}")
            return self._read(response, sent_s, prompt)
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"{self.url}: {error or type(error).__name__}") from error
        finally:
            connection.close()

    def _read(
        self, response: http.client.HTTPResponse, sent_s: float, prompt: list[int] | str
    ) -> Answer:
        chunk_s: list[float] = []
        usage: dict[str, Any] = {}
        for event in _events(response):
            now_s = time.perf_counter()
            if "error" in event:
                raise ServerError(f"{self.url}: {event['error']}")
            # vLLM without a tokenizer sends parts with empty text, one for each step.
            if event.get("choices"):
                chunk_s.append(now_s)
            usage = event.get("usage") or usage
        if not chunk_s:
            raise ServerError(f"{self.url}: an answer without content")
        return Answer(
            sent_s=sent_s,
            prompt_tokens=int(usage.get("prompt_tokens") or len(prompt)),
            output_tokens=int(usage.get("completion_tokens") or len(chunk_s)),
            first_s=chunk_s[0],
            last_s=chunk_s[-1],
            chunk_s=chunk_s,
        )

    def _get(self, path: str) -> tuple[int, str]:
        connection = self._connect()
        try:
            connection.request("GET", self._path(path), headers=self._headers())
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"{self.url}: {error or type(error).__name__}") from error
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ServerError(f"{self.url!r} is not a URL such as http://localhost:8000")
        if parts.scheme == "https":
            return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=self.timeout_s)
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=self.timeout_s)

    def _path(self, path: str) -> str:
        return urlsplit(self.url).path.rstrip("/").removesuffix("/v1") + path

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return headers


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """Yield the server-sent events of a response as they come, up to ``[DONE]``."""
    while line := response.readline():
        if not line.startswith(_DATA):
            continue
        data = line[len(_DATA) :].strip()
        if data == _DONE:
            response.read()  # the end of the body, without which closing looks like a failure
            return
        try:
            yield json.loads(data)
        except ValueError:
            raise ServerError(f"an event that is not JSON: {data[:200]!r}") from None
