"""Calibrations made and looked at: `fleetcast calibrate import`, `run`, `show`, `diff`."""
