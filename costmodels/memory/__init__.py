"""Device memory of a rank: weights, workspace, KV pages and what lies off the device."""
