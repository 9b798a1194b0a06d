"""Types of the columns that simulations read and write."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
