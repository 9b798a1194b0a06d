"""``fleetcast scenario init``: a commented scenario, written from the schema."""
