"""How long work tells how far it is, without knowing who listens."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives the state of long work; called often, so it must be cheap, and not always by the same thread.

    The library calls it, the command line and the notebook draw it.
    """

    def __call__(self, stage: str, done: int, total: int | None, unit: str, note: str = "") -> None:
        """Take one state.

        Parameters
        ----------
        stage
            What is being done, such as ``"reading"``; a new name closes the stage before.
        done, total
            How much is done of how much, in `unit`; `total` is None where nobody knows.
        unit
            ``"B"``, ``"edges"``, ``"ids"``, ``"names"``, ``"tiles"`` or ``"passes"``.
        note
            A short text to show beside, such as the error bound of the last pass.
        """


def silent(stage: str, done: int, total: int | None, unit: str, note: str = "") -> None:
    """Ignore all progress.

    Examples
    --------
    >>> silent("reading", 0, None, "B")
    """


Listener = Progress | bool | None
"""What callers give as ``progress``: True to see it on standard error, as the command line shows it; a
`Progress`; or False or None for silence."""
