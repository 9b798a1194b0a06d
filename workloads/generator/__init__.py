"""Workloads made from distributions: arrivals, lengths, prefixes, sessions, users."""
