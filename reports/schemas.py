"""Names and versions of the file formats in result folders."""

RESULT = "fleetcast.result/1"
VALIDATION = "fleetcast.validation/1"
PLAN = "fleetcast.plan/1"
SWEEP = "fleetcast.sweep/1"
WHATIF = "fleetcast.whatif/1"
CAPACITY = "fleetcast.capacity/1"
