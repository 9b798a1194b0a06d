"""``fleetcast explain``: one engine step, operator by operator."""
