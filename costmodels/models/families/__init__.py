"""Readers of ``config.json``, one function per family; `costmodels.models.hf_config` lists
them."""
