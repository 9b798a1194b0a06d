"""Compare measurements of a real engine with what fleetcast predicts for the same conditions."""
