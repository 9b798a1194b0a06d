"""GPUs and links: peaks, bandwidths, efficiency constants and the roofline, each number with its
evidence."""
