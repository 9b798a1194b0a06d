"""Real serving engines in this process: a grid of steps and serving runs, timed and recorded."""
