"""Readers of ``config.json``, a function a family; `costmodels.models.families.table` lists
them."""
