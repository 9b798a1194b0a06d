"""The few exceptions a user can meet. Messages say what is wrong, where, and what would be
right."""


class FleetcastError(Exception):
    """Base of all errors with a message for the user; the command line prints it without a
    traceback."""


class ScenarioError(FleetcastError):
    """A scenario, flag or specification that cannot be run as written."""


class TraceError(FleetcastError):
    """A workload file that cannot be read in the format it is declared to have."""


class PolicyError(FleetcastError):
    """A policy broke its contract: an illegal batch, no progress, an unknown replica."""
