"""Report of predictions against measurements: tables, figures and page."""
