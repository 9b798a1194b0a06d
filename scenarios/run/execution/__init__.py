"""Run many independent calls at once: on the cores of this machine, or on a Ray or Dask cluster."""
