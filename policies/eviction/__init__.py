"""Policies that choose what a prefix cache evicts when blocks are needed."""
