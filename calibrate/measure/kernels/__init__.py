"""Kernels to time, a module for one family or a few: `cases` is its grid, `prepare` builds one."""
