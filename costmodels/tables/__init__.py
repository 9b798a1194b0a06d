"""Measured kernel times as an input of the cost models.

`store` reads and writes tables, `aic` imports AIConfigurator's, `bundle` prices operators by them.
Nothing is imported here: reading parquet takes time that a run without tables does not have.
"""
