"""Models of which drafted tokens the target accepts (`sim.protocols.Acceptance`), one per file."""
