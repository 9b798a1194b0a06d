"""Fits to a real engine's step logs: host terms, GPU efficiency, links."""
