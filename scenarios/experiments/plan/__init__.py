"""The cheapest fleet that meets its targets: candidates, bounds, simulated verdicts, the search."""
