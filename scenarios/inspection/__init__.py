"""What can be looked at without a simulation: a trace, a device's memory, one engine step."""
