"""Plan the cheapest fleet that meets its targets: candidates, bounds, simulated verdicts,
search."""
