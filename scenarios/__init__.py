"""YAML in, results out: command line, schema, build, run. The only place that knows everything."""

__version__ = "0.1.0"
