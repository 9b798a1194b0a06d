"""Device memory of a rank: weights, workspace, KV pages, and what is kept off the device."""
