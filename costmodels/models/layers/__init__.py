"""Kinds of layers, one file each; `costmodels.models.layers.kinds` lists them."""
