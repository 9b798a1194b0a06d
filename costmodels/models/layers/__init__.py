"""Kinds of layers; `costmodels.models.layers.kinds` lists them."""
