"""Make and inspect calibrations: `fleetcast calibrate import`, `run`, `show`, `diff`."""
