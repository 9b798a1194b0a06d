"""Find the highest load that keeps an SLO: search, runs, and what limits the load there."""
