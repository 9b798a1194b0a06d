"""A model as a list of layers: catalog, readers of config.json, quantization and the kinds of
layers."""
