"""Write a graph of the device benchmark as a store: the web-like one, or a crawl many times beside itself.

Such as::

python3 workflows/bench/device.py store web24.zarr --web 24
python3 workflows/bench/device.py store crawl.zarr --crawl cnr-2000.npz --copies 90
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cupy as cp
import numpy as np
from device_graphs import grown_edges, makers

import oocpr


def main(arguments: list[str] | None = None) -> None:
    """Make the edges on the device and import them in their order."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("store", type=Path, metavar="STORE")
    parser.add_argument("--web", type=int, default=24, metavar="SCALE", help="of the web-like graph")
    parser.add_argument("--crawl", type=Path, metavar="FILE.npz", help="a crawl instead")
    parser.add_argument("--copies", type=int, default=90, help="how many times")
    parser.add_argument("--memory", default="48GiB", help="of the import")
    options = parser.parse_args(arguments)
    if options.crawl is None:
        (make,) = makers([], options.web, []).values()
        _, edges = make()
    else:
        _, edges = grown_edges(options.crawl, options.copies)
    ends = [cp.asnumpy(edges >> np.uint64(shift) & np.uint64(2**32 - 1)) for shift in (0, 32)]
    print(oocpr.import_graph(tuple(ends), options.store, memory=options.memory, order="keep"))


if __name__ == "__main__":
    main()
