"""A run as a timeline for ui.perfetto.dev."""
