"""Sizes that both generators and scenario files must agree on; imports nothing."""

DEFAULT_MAX_TOKENS = 131_072
"""Where a length distribution is clipped if it does not say."""
MOST_COUNTS = 100_000
"""Turns of a session, at most."""
MOST_DOCUMENTS = 1000
"""Of a request, at most; on average."""
