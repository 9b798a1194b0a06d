"""Report of a sweep: its answer, figures over its axes, and a page."""
