"""How a replica is laid out over GPUs: what a rank holds, and what ranks exchange."""
