"""Read command lines of serving engines into scenarios, by data tables of their flags."""
