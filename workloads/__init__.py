"""Workloads as request tables: trace readers, transforms of tables, and a generator."""
