"""A baseline beside its variants: terminal table and page."""
