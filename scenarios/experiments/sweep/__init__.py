"""Many points of a scenario: axes, replications, results that are kept, and one table of them."""
