"""Report of a baseline beside its variants: terminal table and page."""
