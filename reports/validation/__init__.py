"""Predicted against measured: tables, figures and page."""
