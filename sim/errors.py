"""The few exception types a user can meet. Messages say what is wrong, where, and what is right."""


class FleetcastError(Exception):
    """Base of every error whose message is meant for the user; the CLI prints it, no traceback."""


class ScenarioError(FleetcastError):
    """A scenario, flag or spec that cannot be run as written."""


class TraceError(FleetcastError):
    """A workload file that cannot be read as the format it is said to have."""


class PolicyError(FleetcastError):
    """A policy broke its contract (an illegal batch, no progress, an unknown replica)."""
