"""What a calibration holds, as text and as a page."""
