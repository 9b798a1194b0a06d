"""Results of real load tests: one reader per format, and one data type for all of them."""
