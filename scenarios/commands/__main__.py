"""Run ``python -m scenarios.commands``: the console script without its wrapper."""

from scenarios.commands import main

main()
