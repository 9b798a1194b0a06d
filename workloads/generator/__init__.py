"""Generate workloads from distributions: arrivals, lengths, prefixes, sessions, users."""
