"""A plan's result: on the terminal and as a page."""
