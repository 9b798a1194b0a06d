"""Kinds of layers, one file each; `costmodels.layers.kinds` lists them."""
