"""Measure CUDA devices: ``device.py WHAT ...``, each with options of its own.

Needs CuPy, but neither Zarr (except where stores are read) nor an installation::

    ln -sfn ../kernels oocpr/kernels && PYTHONPATH=. python3 workflows/bench/device.py products --scales 24
"""

from __future__ import annotations

import sys
from importlib import import_module

PROGRAMS = {
    "products": ("device_products", "products of the default and of earlier systems, beside limits"),
    "runs": ("device_rank", "whole runs, all groups on the device: time by parts, error, same bits"),
    "streamed": ("device_stream", "groups streamed from pinned memory, beside the link alone"),
    "several": ("device_several", "the same on all devices at once, beside all links together"),
    "store": ("device_store", "a graph of these written as a store"),
    "start": ("device_start", "whole runs of stored graphs in new processes, by parts, beside rates alone"),
    "budgets": ("device_budgets", "a stored graph within less and less of a device's memory"),
    "workers": ("device_workers", "a stored graph by a Dask worker for each device, beside one process"),
    "seeds": ("device_seeds", "personalized ranks of a stored graph for many seeds"),
    "segments": ("device_segments", "products of numbers in segments by bits read, beside float64"),
    "tune": ("device_tune", "the best launch constants of the products"),
}


def main() -> None:
    """Run what the first word names with the other words."""
    if len(sys.argv) < 2 or sys.argv[1] not in PROGRAMS:
        sys.exit("\n".join(f"device.py {name:9} {what}" for name, (_, what) in PROGRAMS.items()))
    import_module(PROGRAMS[sys.argv[1]][0]).main(sys.argv[2:])


if __name__ == "__main__":
    main()
