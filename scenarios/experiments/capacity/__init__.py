"""The highest load that keeps an SLO: search, runs, and what binds there."""
