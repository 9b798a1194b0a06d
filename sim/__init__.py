"""The cluster in motion and the contracts it is handed: clock, requests, engine, KV, books."""

__version__ = "0.1.0"
