"""Arrays of a device and of the host."""

from __future__ import annotations

from typing import Any

import numpy as np


def fetch(array: Any) -> np.ndarray:
    """A device's array on the host; it waits for all that was launched before."""
    return array.get() if hasattr(array, "get") else np.asarray(array)
