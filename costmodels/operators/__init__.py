"""The operators of one engine step: work, roofline, attention, and where kernel times come from."""
