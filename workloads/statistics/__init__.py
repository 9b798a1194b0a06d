"""What a workload looks like, in the numbers trace papers report."""
