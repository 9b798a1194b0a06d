"""Readers of ``config.json``, one function per family; `costmodels.models.families.table` lists
them."""
