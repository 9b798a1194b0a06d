"""Everything around engines: arrivals, routing, admission, faults, scaling and links."""
