"""Simulate one scenario, once or several times: results, summary and result folder."""
