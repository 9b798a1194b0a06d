"""Hits of prefix caches of every size, computed in one pass."""
