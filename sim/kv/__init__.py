"""Device memory for keys and values: the paged pool, prefix caches and the tiers below them."""
