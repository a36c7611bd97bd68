"""The products of other systems, each with its own layout of the matrix, to be compared with the default.

A product takes what was pushed, one narrow number a node as rows gather it, and sums for each row the numbers
of the nodes with edges to it. If pairs are gathered, the second numbers, proposals, are summed as well.

A group is decoded and laid out by kernels, in arrays that `oocpr.plan.products` lists. They are used from
group to group unless groups stay laid out, and the host waits for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from oocpr.engine.cuda.device import THREADS, grid
from oocpr.engine.cuda.group import TEAMS
from oocpr.engine.cuda.spmv import EVERYTHING, READ_STRUCTS, Gather, window_word
from oocpr.engine.trace import DeviceTrace, Trace
from oocpr.errors import UsageError
from oocpr.plan.products import MAX_SELL_EDGES, SELL_WINDOW, Array, decoded_arrays, product_arrays
from oocpr.plan.request import BALANCED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oocpr.engine.cuda.device import Device, Kernels
    from oocpr.engine.cuda.group import DeviceGroup
    from oocpr.engine.cuda.spmv import SegmentSums, Window

Arrays = dict[str, Any]
"""Arrays of a device by name, as `oocpr.plan.products` lists them."""

Pair = tuple[Any, Any]
"""Gathered numbers and a window, as kernels take them; or sums of pushes and of proposals."""

PREPARE = "prepare"
"""Track of a timeline: decoding groups and laying them out."""


@dataclass(frozen=True)
class Matrix:
    """Rows and the nodes with edges to them, decoded, on the device.

    `offsets` has the first edge of each row, and the number of edges; uint32, shape (rows + 1,).
    `columns` ascend in each row; uint32, shape (edges,). Those from `nodes` on gather zeros.
    """

    offsets: Any
    columns: Any
    nodes: int  # number of nodes
    # out-degree of each node, which one of the products divides by; uint32, shape (nodes,)
    degrees: Any = None
    weights: Any = None  # of edges, if what they bring is multiplied; float64, shape (edges,)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.offsets.size) - 1

    @property
    def edges(self) -> int:
        """Number of edges."""
        return int(self.columns.size)

    @property
    def by_row(self) -> tuple[Any, np.uint32]:
        """Where rows begin, and how many there are, as kernels take them."""
        return self.offsets, np.uint32(self.rows)


class Product:
    """The kernels of one product, and how they want a matrix laid out."""

    layout: str
    """What `product_arrays` calls its layout."""
    file: str
    threads = THREADS
    """Of a block, where a kernel does not ask for others; changes the speed, and no sum."""

    def __init__(self, device: Device, gather: Gather, **parameters: int | str) -> None:
        self._device = device
        self._kernels: Kernels = device.load(
            self.file,
            READS=READ_STRUCTS[gather.reads],
            PAIRED=int(gather.paired),
            STRIPED=int(gather.striped),
            WEIGHTED=int(gather.weighted),
            **parameters,
        )

    def arrays(self, rows: int, edges: int, nodes: int) -> dict[str, Array]:  # noqa: ARG002
        """What is laid out of so many rows and edges at most."""
        return product_arrays(self.layout, rows, edges)

    def lay_out(self, matrix: Matrix, laid: Arrays | None = None) -> Arrays:
        """Lay a matrix out in new arrays, or in those that are given, which are large enough."""
        if laid is None:
            laid = allocated(self._device, self.arrays(matrix.rows, matrix.edges, matrix.nodes))
        self._prepare(matrix, laid)
        return laid

    def _prepare(self, matrix: Matrix, laid: Arrays) -> None:
        """Launch what lays a matrix out; nothing, if it is taken as it is."""

    def __call__(
        self,
        matrix: Matrix,
        laid: Arrays,
        reads: Any,
        pushes: Any,
        proposals: Any = None,
        window: Window = EVERYTHING,
    ) -> None:
        """Launch the product; allocates nothing.

        `laid`: what `lay_out` made of the matrix.
        `reads`: numbers of all nodes and zeros behind them; the format's dtype, shape (nodes + 4,), or
            (nodes + 4, 2) if paired.
        `pushes`, `proposals`: receive the sums, those of ``bits8`` without the scale; float64 and float32,
            shape (rows,).
        """
        self._run(matrix, laid, (reads, window_word(window)), (pushes, proposals))

    def _run(self, matrix: Matrix, laid: Arrays, gathered: Pair, sums: Pair) -> None:
        raise NotImplementedError

    def _launch(self, name: str, threads: int, *arguments: Any, block: int | None = None) -> None:
        block = block or self.threads
        if threads:
            self._kernels.get_function(name)((-(-threads // block),), (block,), arguments)

    @staticmethod
    def _clear(matrix: Matrix, pushes: Any, proposals: Any) -> None:
        """Begin with sums of zero, to which parts of rows are added."""
        for sums in (pushes, proposals):
            if sums is not None:
                sums[: matrix.rows] = 0

    def _launch_some(self, name: str, threads: int, *arguments: Any, block: int | None = None) -> None:
        """Launch at most so many threads, which take what is counted on the device in turns."""
        block = block or self.threads
        self._launch(
            name, min(threads, block * MAX_BLOCKS * self._device.multiprocessors), *arguments, block=block
        )


MAX_BLOCKS = 64
"""Blocks of threads per multiprocessor, if the host does not know how many have work."""


class RowLanes(Product):
    """So many lanes a row, 0 for a warp: ``kernels/papers/rows.cu``."""

    layout, file = "csr", "papers/rows.cu"

    def __init__(self, device: Device, gather: Gather, *, lanes: int) -> None:
        self._lanes = lanes or device.warp
        super().__init__(device, gather, ROW_LANES=self._lanes)

    def _run(self, matrix: Matrix, laid: Arrays, gathered: Pair, sums: Pair) -> None:  # noqa: ARG002
        self._launch(
            "rows", matrix.rows * self._lanes,
            matrix.offsets, matrix.columns, matrix.weights, *gathered, np.uint32(matrix.rows), *sums,
        )  # fmt: skip


@dataclass(frozen=True)
class BinThresholds:
    """How rows are divided into bins; changes the speed, never the result."""

    tiny: int = 6  # most edges of a row that one thread takes
    small: int = 96  # most edges of a row that 16 lanes take; longer ones have 32
    block: int = THREADS  # threads of a block


BINNED_THREADS = (256, 512, 1024)
"""Threads of a block for which the row-binned kernel is compiled."""


class Binned(Product):
    """A thread, 16 or 32 lanes a row, by its size: ``kernels/papers/binned.cu``."""

    layout, file = "binned", "papers/binned.cu"

    def __init__(self, device: Device, gather: Gather, *, thresholds: BinThresholds | None = None) -> None:
        self._thresholds = thresholds or BinThresholds()
        self._words = np.uint32(self._thresholds.tiny), np.uint32(self._thresholds.small)
        # Threads of larger blocks have to do with fewer registers.
        most = next(threads for threads in BINNED_THREADS if threads >= self._thresholds.block)
        super().__init__(device, gather, MOST_THREADS=most)

    def _prepare(self, matrix: Matrix, laid: Arrays) -> None:
        counts, rows = laid["counts"], matrix.rows
        counts.fill(0)
        by_row = *matrix.by_row, *self._words, counts
        self._launch("count_rows", rows, *by_row)
        self._launch("place_rows", rows, *by_row, laid["order"])

    def _run(self, matrix: Matrix, laid: Arrays, gathered: Pair, sums: Pair) -> None:
        tiny, small, block = self._thresholds.tiny, self._thresholds.small, self._thresholds.block
        # Rows of more than so many edges are at most so many.
        most = [matrix.rows, *(min(matrix.rows, matrix.edges // (size + 1)) for size in (tiny, small))]
        names, lanes = ("tiny_rows", "small_rows", "normal_rows"), (1, 16, 32)
        for name, rows, each in zip(names, most, lanes, strict=True):
            self._launch_some(
                name, rows * each, matrix.offsets, matrix.columns, matrix.weights, laid["order"],
                laid["counts"], *gathered, *sums, block=block,
            )  # fmt: skip


class Sell(Product):
    """One thread a row, rows side by side: ``kernels/papers/sell.cu``."""

    layout, file = "ell", "papers/sell.cu"
    sorting_threads = 1024

    def __init__(self, device: Device, gather: Gather, *, window: int = SELL_WINDOW) -> None:
        super().__init__(device, gather, WINDOW=window, LONGEST=MAX_SELL_EDGES)
        self._window = window

    def arrays(self, rows: int, edges: int, nodes: int) -> dict[str, Array]:  # noqa: ARG002
        """See Product."""
        return product_arrays(self.layout, rows, edges, window=self._window)

    def _prepare(self, matrix: Matrix, laid: Arrays) -> None:
        rows, threads = matrix.rows, self.sorting_threads
        laid["counts"].fill(0)
        self._launch(
            "sort_rows", -(-rows // self._window) * threads,
            *matrix.by_row, laid["sizes"], laid["numbers"], laid["begins"], laid["long_rows"],
            laid["counts"], block=threads,
        )  # fmt: skip
        self._launch(
            "fill_slices", rows,
            matrix.offsets, matrix.columns, laid["begins"], laid["sizes"], laid["numbers"], np.uint32(rows),
            laid["entries"],
        )  # fmt: skip

    def _run(self, matrix: Matrix, laid: Arrays, gathered: Pair, sums: Pair) -> None:
        self._launch(
            "sell", matrix.rows,
            laid["begins"], laid["sizes"], laid["numbers"], laid["entries"], *gathered,
            np.uint32(matrix.rows), *sums,
        )  # fmt: skip
        self._launch_some(
            "sum_long_rows", 32 * min(matrix.rows, matrix.edges // (MAX_SELL_EDGES + 1)),
            matrix.offsets, matrix.columns, laid["long_rows"], laid["counts"], *gathered, *sums,
        )  # fmt: skip


class AtomicEdges(Product):
    """One thread an edge, atomic sums, whose bits change from run to run: ``kernels/papers/edges.cu``."""

    layout, file = "edges", "papers/edges.cu"

    def _prepare(self, matrix: Matrix, laid: Arrays) -> None:
        self._launch("number_edges", matrix.edges, *matrix.by_row, laid["numbers"])

    def _run(self, matrix: Matrix, laid: Arrays, gathered: Pair, sums: Pair) -> None:
        self._clear(matrix, *sums)
        self._launch(
            "add_edges", matrix.edges,
            *matrix.by_row, laid["numbers"], matrix.columns, *gathered, *sums,
        )  # fmt: skip


class DividingEdges(AtomicEdges):
    """The same, but each edge divides: `reads` are float64 and not yet divided by out-degrees."""

    def __init__(self, device: Device, gather: Gather) -> None:
        if gather != Gather("float64"):
            raise ValueError("edges that divide gather single float64 numbers")
        super().__init__(device, gather)

    def _run(self, matrix: Matrix, laid: Arrays, gathered: Pair, sums: Pair) -> None:
        self._clear(matrix, *sums)
        self._launch(
            "divide_and_add", matrix.edges,
            *matrix.by_row, laid["numbers"], matrix.columns, gathered[0], matrix.degrees, sums[0],
        )  # fmt: skip


class Chunked(Product):
    """Gathers from chunks in shared memory: ``kernels/papers/chunked.cu``."""

    layout, file = "chunked", "papers/chunked.cu"
    threads = 1024

    def __init__(self, device: Device, gather: Gather, *, lanes: int = 4, size: int | None = None) -> None:
        super().__init__(device, gather, ROW_LANES=lanes)
        self._size = size or min(1 << 16, device.shared_bytes // gather.bytes)
        self._shared = self._size * gather.bytes
        self._lanes = lanes
        self._max_blocks = device.multiprocessors * (2 if 2 * self._shared <= device.shared_bytes else 1)
        self._kernel = self._kernels.get_function("add_chunk")
        self._kernel.max_dynamic_shared_size_bytes = self._shared

    def arrays(self, rows: int, edges: int, nodes: int) -> dict[str, Array]:
        """See Product."""
        return product_arrays(self.layout, rows, edges, chunks=-(-nodes // self._size))

    def _prepare(self, matrix: Matrix, laid: Arrays) -> None:
        ends, chunks = laid["ends"], -(-matrix.nodes // self._size)
        ends.fill(0)
        by_edge = (
            *matrix.by_row, matrix.columns, np.uint32(matrix.nodes), np.uint32(self._size), ends,
        )  # fmt: skip
        self._launch("count_parts", matrix.edges, *by_edge)
        self._launch("add_up_chunks", 32, ends, np.uint32(chunks), laid["part_offsets"], block=32)
        parts = laid["part_offsets"], laid["part_rows"], laid["near"]
        self._launch("place_parts", matrix.edges, *by_edge, *parts)

    def _run(self, matrix: Matrix, laid: Arrays, gathered: Pair, sums: Pair) -> None:
        self._clear(matrix, *sums)
        # A row has one part of a chunk at most.
        parts = min(matrix.rows, matrix.edges)
        blocks = min(self._max_blocks, -(-parts * self._lanes // self.threads))
        for chunk, begin in enumerate(range(0, matrix.nodes if blocks else 0, self._size)):
            size = min(self._size, matrix.nodes - begin)
            arguments = (
                laid["part_offsets"], laid["part_rows"], laid["ends"], np.uint32(chunk), laid["near"],
                gathered[0], np.uint32(begin), np.uint32(size), gathered[1], *sums,
            )  # fmt: skip
            self._kernel((blocks,), (self.threads,), arguments, shared_mem=self._shared)


class Bcsr(Product):
    """Blocks of one row and four columns: ``kernels/papers/bcsr.cu``."""

    layout, file = "bcsr", "papers/bcsr.cu"

    def __init__(self, device: Device, gather: Gather, *, lanes: int = 16) -> None:
        super().__init__(device, gather, ROW_LANES=lanes)
        self._lanes = lanes

    def _prepare(self, matrix: Matrix, laid: Arrays) -> None:
        found = laid["counts"], laid["blocks"], laid["bits"]
        self._launch(
            "find_blocks", 32 * matrix.rows,
            matrix.offsets, matrix.columns, np.uint32(matrix.rows), np.uint32(matrix.nodes), *found,
        )  # fmt: skip

    def _run(self, matrix: Matrix, laid: Arrays, gathered: Pair, sums: Pair) -> None:
        self._launch(
            "bcsr", matrix.rows * self._lanes,
            matrix.offsets, laid["counts"], laid["blocks"], laid["bits"], *gathered,
            np.uint32(matrix.rows), *sums,
        )  # fmt: skip


class Baseline(NamedTuple):
    """One product that can be asked for."""

    words: str  # what it does, in a few words
    make: Callable[..., Product]  # compiles its kernels: ``make(device, gather, **options)``
    fixed_bits: bool = True  # whether the bits of its sums are the same in every run
    divides: bool = False  # whether it gathers float64 numbers that are not yet divided by out-degrees
    weights: bool = False  # whether it multiplies what edges bring by their weights


BASELINES = {
    "csr-scalar": Baseline("one thread a row", partial(RowLanes, lanes=1), weights=True),
    "csr-16": Baseline("16 threads a row", partial(RowLanes, lanes=16), weights=True),
    "csr-vector": Baseline("one warp a row", partial(RowLanes, lanes=0), weights=True),
    "binned": Baseline("a thread, 16 or 32 lanes a row, by its size (Wu 2010)", Binned, weights=True),
    "ell": Baseline("one thread a row, columns side by side (SELL-C-sigma)", Sell),
    "edges": Baseline(
        "one thread an edge, dividing, atomic sums (Jiang 2014, A)", DividingEdges, False, True
    ),
    "exchange": Baseline("one thread an edge, atomic sums (Jiang 2014, B)", AtomicEdges, False),
    "chunked": Baseline("chunks of columns in shared memory (contest report, step 2)", Chunked),
    "bcsr": Baseline("blocks of one row and four columns (Shan 2010)", Bcsr),
}

KERNELS = {
    BALANCED: "equal pieces of edges",
    **{name: baseline.words for name, baseline in BASELINES.items()},
}
"""What each product does, by the name that `--kernel` takes; all but the first are for comparison."""

_THRESHOLDS = re.compile(r"binned:(\d{1,9}):(\d{1,9})(?::(\d{1,4}))?", re.ASCII)


def parse_kernel(text: str | None) -> tuple[str, BinThresholds | None]:
    """Name of a kernel, and how rows are divided into bins if that is said.

    `text`: one of KERNELS, or ``binned:6:96`` or ``binned:6:96:256`` (BinThresholds); None for the default.
    Raises UsageError for what names no kernel, or divides no rows.

    >>> parse_kernel("binned:4:64")
    ('binned', BinThresholds(tiny=4, small=64, block=256))
    """
    if text is None:
        return next(iter(KERNELS)), None
    if text in KERNELS:
        return text, None
    if not text.startswith("binned:"):
        raise UsageError(f"kernel {text!r} is not known.", f"Use one of {', '.join(KERNELS)}.")
    found = _THRESHOLDS.fullmatch(text)
    tiny, small, block = (
        (int(number or BinThresholds.block) for number in found.groups()) if found else (1, 0, 0)
    )
    if tiny > small or block % 32 or not 32 <= block <= 1024:
        raise UsageError(
            f"kernel {text!r} divides no rows.",
            "Name the most edges of a row for one thread and for 16, the first no larger, as in binned:6:96; "
            "the threads of a block, 32 to 1024 in steps of 32, may follow: binned:6:96:256.",
        )
    return text.partition(":")[0], BinThresholds(tiny, small, block)


def allocated(device: Device, arrays: Mapping[str, Array]) -> Arrays:
    """Arrays of a device for what a plan lists."""
    return {name: device.xp.empty(max(1, size), dtype) for name, (dtype, size) in arrays.items()}


@dataclass(frozen=True)
class LaidGroup:
    """A group as it is decoded and laid out for a product, or room for that."""

    decoded: Arrays
    laid: Arrays

    def matrix(self, group: DeviceGroup, nodes: int, degrees: Any = None) -> Matrix:
        """The rows of a group that is decoded here; each segment is one."""
        sizes, decoded = group.sizes, self.decoded
        offsets = decoded["offsets"][: sizes.rows + sizes.tiles + 1]
        return Matrix(offsets, decoded["columns"][: sizes.edges], nodes, degrees, decoded.get("weights"))


class DecodedSpMV:
    """A product of decoded columns: decodes groups, lays them out, multiplies.

    `layouts_stay`: whether groups that stay on the device also stay laid out. Others are laid out in every
    pass, in one workspace.
    """

    def __init__(
        self, device: Device, kernel: str, thresholds: BinThresholds | None, *, layouts_stay: bool
    ) -> None:
        self._device = device
        options = {} if thresholds is None else {"thresholds": thresholds}
        self._make = partial(BASELINES[kernel].make, device, **options)
        self.takes_weights, self.divides = BASELINES[kernel].weights, BASELINES[kernel].divides
        self._products: dict[Gather, Product] = {}
        self._layouts_stay = layouts_stay
        self._most = 0, 0
        self._workspace: LaidGroup | None = None
        self._timeline = Trace()
        self._trace = DeviceTrace(device, self._timeline)

    def expect(self, rows: int, edges: int) -> None:
        """Make room for groups of so many segments and edges, too, once the first one is decoded."""
        most = max(self._most[0], rows), max(self._most[1], edges)
        if most != self._most:
            self._most, self._workspace = most, None

    def __call__(
        self,
        group: DeviceGroup,
        gather: Gather,
        reads: Any,
        nodes: int,
        window: Window,
        sums: SegmentSums,
        faults: Any,
        degrees: Any = None,
    ) -> None:
        """Sum what is delivered to each segment of a group, the empty ones too.

        `degrees`: of all nodes, if the product divides by them; uint32 of the device.
        `reads`: stored numbers of all nodes, or of the `window` if the gather is local, and zeros behind.
        `faults`: uint32, shape (1,): receives the faults found; a group that has some delivers nothing.
        """
        if gather not in self._products:
            self._products[gather] = self._make(gather)
        product, gathered = self._products[gather], window if gather.local else (0, nodes)
        laid: LaidGroup | None = group.made.get("laid out")
        if laid is None:
            laid = self._room(product, group, nodes, weighted=gather.weighted)
            with self._trace.span(PREPARE, ""):
                decode(self._device, group, nodes, gathered, laid.decoded, faults)
                product.lay_out(laid.matrix(group, gathered[1] - gathered[0]), laid.laid)
        matrix = laid.matrix(group, gathered[1] - gathered[0], degrees)
        product(matrix, laid.laid, reads, sums.pushes, sums.proposals if gather.paired else None, window)

    def _room(self, product: Product, group: DeviceGroup, nodes: int, *, weighted: bool) -> LaidGroup:
        """Where a group is decoded and laid out: an own place if it stays there, else the workspace."""
        sizes = group.sizes
        if self._layouts_stay and group.checked:
            rows = sizes.rows + sizes.tiles
            own = self._allocated(product, rows, sizes.edges, nodes, weighted=weighted)
            group.made["laid out"] = own
            return own
        if self._workspace is None:
            self._workspace = self._allocated(product, *self._most, nodes, weighted=weighted)
        return self._workspace

    def _allocated(self, product: Product, rows: int, edges: int, nodes: int, *, weighted: bool) -> LaidGroup:
        arrays = decoded_arrays(rows, edges, weighted=weighted), product.arrays(rows, edges, nodes)
        return LaidGroup(*(allocated(self._device, each) for each in arrays))

    @property
    def preparing_seconds(self) -> float:
        """Time of the device that went into decoding and laying out; waits for it."""
        self._device.synchronize()
        self._trace.finish()
        return self._timeline.busy().get(PREPARE, 0.0)


def decode(
    device: Device, group: DeviceGroup, nodes: int, window: Window, decoded: Arrays, faults: Any
) -> None:
    """Decode the columns of a group, counted from the first of a window, and find where segments begin."""
    sizes, arrays = group.sizes, group.arrays
    group.decode_columns(device, nodes, faults, decoded["columns"], window=window)
    if "weights" in decoded:
        group.decode_weights(device, decoded["weights"])
    group.list_begins(device, faults, decoded["begins"])
    segments = sizes.rows + sizes.tiles
    device.load("decode.cu", TEAMS=TEAMS).get_function("list_offsets")(
        grid(segments + 1),
        (THREADS,),
        (
            *group.table, arrays.filled, arrays.filled_before, decoded["begins"], np.uint32(sizes.nonempty),
            np.uint32(sizes.edges), np.uint32(segments), faults, decoded["offsets"],
        ),
    )  # fmt: skip
