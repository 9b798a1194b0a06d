"""Operator tables from measured kernel timings."""
