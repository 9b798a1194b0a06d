"""The report of a diagnosis: measured and replayed latencies, window by window."""
