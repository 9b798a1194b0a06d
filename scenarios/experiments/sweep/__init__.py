"""Run many points of a scenario: axes, replications, results that are kept, and a table of them."""
