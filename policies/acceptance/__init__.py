"""Which drafted tokens a target accepts (`sim.protocols.Acceptance`), one file each."""
