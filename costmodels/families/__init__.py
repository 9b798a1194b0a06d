"""Readers of ``config.json``, a function a family; `costmodels.families.table` lists them."""
