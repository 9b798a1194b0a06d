"""Replay measured traffic, and say which of a server's bad times it explains."""
