"""``fleetcast compare``: a run beside the results of a load test."""
