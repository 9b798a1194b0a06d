"""Timelines of runs for ui.perfetto.dev."""
