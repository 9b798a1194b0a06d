"""``fleetcast memory``: what fills the device, and how many sequences fit."""
