"""Statistics of workloads, in the numbers that trace papers report."""
