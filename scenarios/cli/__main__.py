"""``python -m scenarios.cli``: the console script without its wrapper."""

from scenarios.cli import main

main()
