"""What-if: a scenario and changes to it, compared on the same requests.

from scenarios.experiments.whatif import Change, what_if

answer = what_if({"model": ..., "workload": ...}, [Change("TP 2", {...})])
"""

from scenarios.experiments.whatif.changes import Change
from scenarios.experiments.whatif.comparison import WhatIf, what_if

__all__ = ["Change", "WhatIf", "what_if"]
