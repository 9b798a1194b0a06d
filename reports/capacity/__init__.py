"""The highest load that keeps an SLO: terminal text and page."""
