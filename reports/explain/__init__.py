"""Report of one engine step: terminal text, roofline plot, page."""
