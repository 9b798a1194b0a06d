"""Policies that decide how many replicas there should be."""
