"""Results of real load tests: a reader a format, one shape for all of them."""
