"""Policies that choose the replica of each request."""
