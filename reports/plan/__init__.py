"""Report of a plan: terminal text and page."""
