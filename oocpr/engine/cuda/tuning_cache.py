"""Shapes that tuning found fastest, kept from run to run: a small JSON file for each device.

They only change the time of a run, so whatever is wrong with a file is said in the log, and the file is as
good as none. A file names its device, driver, compiler and version of oocpr; to all others it is foreign.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oocpr.engine.cuda.tuning_candidates import SPACES, Case, graph_class
from oocpr.errors import OocprError
from oocpr.store.atomic import replacing
from oocpr.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oocpr.engine.cuda.backend import Shapes
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.papers.products import Gather
    from oocpr.engine.cuda.tuning_candidates import Tunable
    from oocpr.plan.graph_stats import GraphFacts

_LOG = logging.getLogger(__name__)

FORMAT = 1


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Folder for what can be made again: OOCPR_CACHE_DIR, or one of the XDG folders.

    Examples
    --------
    >>> cache_folder({"XDG_CACHE_HOME": "/tmp/cache"}).as_posix()
    '/tmp/cache/oocpr'
    """
    given = environment.get("OOCPR_CACHE_DIR")
    if given:
        return Path(given)
    base = Path(environment.get("XDG_CACHE_HOME", ""))
    # The specification has relative paths ignored.
    return (base if base.is_absolute() else Path.home() / ".cache") / "oocpr"


def class_of(facts: GraphFacts, case: Case) -> str:
    """Class of a graph that is planned with; see `graph_class`."""
    return graph_class(facts.nodes, facts.edges, facts.local_share, case)


class Kept:
    """The file of one device.

    Parameters
    ----------
    folder
        Where the files of all devices are.
    device
        What tells the device from others.
    """

    def __init__(self, folder: Path, device: Mapping[str, str]) -> None:
        self._owner = {**device, "oocpr": __version__}
        words = re.sub(r"[^a-z0-9]+", "-", device["name"].lower()).strip("-")
        seen = hashlib.sha256(json.dumps(self._owner, sort_keys=True).encode()).hexdigest()[:12]
        self.path = folder / f"{words}-{seen}.json"

    @classmethod
    def of(cls, device: Device) -> Kept:
        """File of a device in the user's folder."""
        return cls(cache_folder() / "tuned", device.identity)

    def find(self, kernel: str, name: str, case: Case) -> Tunable | None:
        """Shape that a class of graphs takes; None where none is kept.

        Parameters
        ----------
        kernel, name
            The product, and the class; see `graph_class`.
        case
            What the shape is for.
        """
        entry = self._entries().get(kernel, {}).get(name)
        if entry is None or kernel not in SPACES:
            return None
        shape = SPACES[kernel].read(entry.get("shape") if isinstance(entry, dict) else None, case)
        if shape is None:
            _LOG.warning("%s: no shape of kernel %s for %s; it is ignored", self.path, kernel, name)
        else:
            _LOG.info("kernel %s, %s: %s", kernel, name, shape)
        return shape

    def keep(self, kernel: str, name: str, shape: Tunable, figures: Mapping[str, Any]) -> bool:
        """Keep a shape, beside those of other kernels and classes; tell whether that was possible.

        Parameters
        ----------
        kernel, name
            As for `find`.
        shape
            The fastest.
        figures
            What was measured, for people who look into the file.
        """
        entries = self._entries()
        entries.setdefault(kernel, {})[name] = {"shape": asdict(shape), **figures}
        text = json.dumps({"format": FORMAT, "device": self._owner, "kept": entries}, indent=1)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path) as temporary:
                temporary.write_text(text + "\n", encoding="utf-8")
        except (OSError, OocprError) as error:
            _LOG.warning("%s: the shape is not kept: %s", self.path, error)
            return False
        return True

    def _entries(self) -> dict[str, dict[str, Any]]:
        """Entries by kernel and class; none where the file is missing, or not what `keep` wrote."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            _LOG.warning("%s cannot be read and is ignored: %s", self.path, error)
            return {}
        kept = found.get("kept") if isinstance(found, dict) else None
        if (
            not isinstance(kept, dict)
            or not all(isinstance(entries, dict) for entries in kept.values())
            or (found.get("format"), found.get("device")) != (FORMAT, self._owner)
        ):
            _LOG.warning("%s is not of this device and version, and is ignored", self.path)
            return {}
        return kept


def kept_shapes(device: Device, kernel: str, facts: GraphFacts) -> Shapes:
    """Return what looks up the shapes that are kept for the graph of a run."""
    kept = Kept.of(device)

    def find(gather: Gather, hubs: bool) -> Tunable | None:
        case = Case(gather, hubs, device.shared_bytes)
        return kept.find(kernel, class_of(facts, case), case)

    return find
