"""Reports of result folders: terminal summaries, figures and HTML pages. Nothing here runs a
simulation."""
