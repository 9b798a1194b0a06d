"""Report of a capacity search, the highest load that keeps an SLO: terminal text and page."""
