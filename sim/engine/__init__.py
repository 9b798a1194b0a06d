"""One serving engine: from a waiting request to visible tokens, step by step or in jumps."""
