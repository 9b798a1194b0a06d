"""The report of one run: terminal summary and page."""
