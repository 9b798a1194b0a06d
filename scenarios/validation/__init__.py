"""Measurements of a real engine against what fleetcast predicts for the same conditions."""
