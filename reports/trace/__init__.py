"""Report of a recorded workload: terminal text and page."""
