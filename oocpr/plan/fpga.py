"""What one product takes on the FPGA of Shan et al. 2010, by its numbers: no such device can be used here.

Eight processing elements at 125 MHz, to which rows are dealt so that all have as many non-zeros. An element
takes a non-zero a cycle, and loses a cycle for a row without any; the slowest element decides.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fpga:
    """The processing elements, and how many cycles a second they have."""

    elements: int = 8
    hertz: float = 125e6

    def cycles(self, edges: int, empty_rows: int, largest_row: int) -> int:
        """Cycles of a product of a matrix with so many non-zeros, and so many of them in its largest row.

        Rows are dealt evenly, up to one row: an element has the largest row, or as much as all others.

        >>> Fpga(elements=2).cycles(edges=10, empty_rows=4, largest_row=3), Fpga().cycles(10, 0, 9)
        (7, 9)
        """
        return max(largest_row, -(-(edges + empty_rows) // self.elements))

    def seconds(self, edges: int, empty_rows: int, largest_row: int) -> float:
        """Seconds of such a product.

        >>> f"{Fpga().seconds(19_753_078, 460_000, 2000) * 1e3:.2f} ms"
        '20.21 ms'
        """
        return self.cycles(edges, empty_rows, largest_row) / self.hertz
