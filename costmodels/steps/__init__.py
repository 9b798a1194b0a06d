"""The step cost of a replica: compiled, split by account, explained and bounded."""
