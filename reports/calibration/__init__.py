"""Contents of a calibration, as terminal text and as a page."""
