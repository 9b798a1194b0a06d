"""What prefix caches of every size would hit, in one pass."""
