"""Which requests are let in."""
