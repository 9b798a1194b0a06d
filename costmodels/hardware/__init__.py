"""GPUs and links: peaks, bandwidths, efficiency constants and the roofline, all with evidence."""
