"""Files whose links may have weights: in a column, or as the values of a matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oocpr.sources.base import FileSource
from oocpr.sources.weights import VALUES, check_values, column_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oocpr.sources.places import AnyPath


class ColumnsFile(FileSource):
    """Lines of columns.

    Parameters
    ----------
    path, labels
        As for `FileSource`.
    weight
        Number of the column of weights, counted from 1; None for links without.

    Raises
    ------
    UsageError
        A column that can have no weights.
    """

    def __init__(
        self,
        path: AnyPath | Sequence[AnyPath],
        labels: AnyPath | None = None,
        *,
        weight: str | int | None = None,
    ) -> None:
        super().__init__(path, labels)
        self._weight = 0 if weight is None else column_number(weight)
        self.weighted = weight is not None

    def identity(self) -> dict[str, Any] | None:
        """Tell the files, when they were changed, and the column of weights."""
        return self._with_weight(super().identity(), self._weight or None)


class MatrixFile(FileSource):
    """A matrix.

    Parameters
    ----------
    path, labels
        As for `FileSource`.
    weight
        ``"values"`` to take the stored values as weights; None for links without.

    Raises
    ------
    UsageError
        Weights that a matrix does not have.
    """

    def __init__(
        self,
        path: AnyPath | Sequence[AnyPath],
        labels: AnyPath | None = None,
        *,
        weight: str | int | None = None,
    ) -> None:
        super().__init__(path, labels)
        check_values(weight, self.title)
        self.weighted = weight is not None

    def identity(self) -> dict[str, Any] | None:
        """Tell the file, when it was changed, and whether values are weights."""
        return self._with_weight(super().identity(), VALUES if self.weighted else None)
