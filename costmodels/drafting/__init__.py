"""Speculative decoding: drafters and the step cost of a target with its drafter."""
