"""Questions that take many runs: what-if, capacity, sweep, plan."""
