"""Running servers with an OpenAI-compatible API: a designed load, sent and timed from outside."""
