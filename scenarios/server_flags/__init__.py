"""Command lines of serving engines into scenarios: what becomes of each flag is data beside."""
