"""Random scenarios and damaged inputs, with an audit that shares no code with the books of a run:
``python -m tests.attack SECONDS [--seed N]``."""
