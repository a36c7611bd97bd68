"""The products that a run can ask for, and how they are named."""

from __future__ import annotations

import re

from oocpr.engine.cuda.papers.products import BASELINES, Cut
from oocpr.errors import UsageError

KERNELS = {
    "balanced": "packed columns, equal pieces of edges",
    **{name: baseline.words for name, baseline in BASELINES.items() if not baseline.divides},
}
"""What each product does, by the name that `--kernel` takes; all but the first are for comparison."""

_CUT = re.compile(r"binned:(\d{1,9}):(\d{1,9})(?::(\d{1,4}))?", re.ASCII)


def parse_kernel(text: str | None) -> tuple[str, Cut | None]:
    """Tell the name of a kernel, and how rows are divided into bins where that is said.

    Parameters
    ----------
    text
        One of KERNELS, or ``binned:6:96`` or ``binned:6:96:256``, see Cut; None for the default.

    Raises
    ------
    UsageError
        For what names no kernel, or divides no rows.

    Examples
    --------
    >>> parse_kernel("binned:4:64")
    ('binned', Cut(tiny=4, small=64, block=256))
    """
    if text is None:
        return next(iter(KERNELS)), None
    if text in KERNELS:
        return text, None
    if not text.startswith("binned:"):
        raise UsageError(f"kernel {text!r} is not known.", f"Use one of {', '.join(KERNELS)}.")
    found = _CUT.fullmatch(text)
    tiny, small, block = (int(number or Cut.block) for number in found.groups()) if found else (1, 0, 0)
    if tiny > small or block % 32 or not 32 <= block <= 1024:
        raise UsageError(
            f"kernel {text!r} divides no rows.",
            "Name the most links of a row for one thread and for 16, the first no larger, as in binned:6:96; "
            "the threads of a block, 32 to 1024 in steps of 32, may follow: binned:6:96:256.",
        )
    return text.partition(":")[0], Cut(tiny, small, block)
