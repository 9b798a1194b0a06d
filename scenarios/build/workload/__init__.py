"""A scenario's workload as a request table: generated, or read from a trace."""
