"""Kinds of layers, one per file; `costmodels.models.layers.kinds` lists them."""
