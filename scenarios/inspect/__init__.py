"""``fleetcast trace inspect``: the facts of a recorded workload."""
