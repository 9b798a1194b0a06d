"""A sweep: its table as an answer, figures over its axes, and a page."""
