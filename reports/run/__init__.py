"""Report of one run: terminal summary and page."""
