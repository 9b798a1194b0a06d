"""One engine step explained: text, roofline plot, page."""
