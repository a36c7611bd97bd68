"""What is on disk, and only that."""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _Later(ModuleType):
    """A module that is imported once something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


if not sys.modules.keys() & {"cupy", "zarr"} and find_spec("cupy") is not None:
    # For buffers on devices, Zarr imports CuPy if there is any, which takes longer than the rest of Zarr.
    _later = sys.modules["cupy"] = _Later("cupy")
    import zarr  # noqa: F401

    if sys.modules.get("cupy") is _later:
        del sys.modules["cupy"]
