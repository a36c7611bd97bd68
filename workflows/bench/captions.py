"""What docs/benchmarks.md says above each table and of how it was measured, and what it calls its rows."""

from __future__ import annotations

INTRODUCTION = """
Made by [workflows/bench/tables.py](../workflows/bench/tables.py) from the
[results](../workflows/bench/results); [workflows/bench](../workflows/bench/README.md) says how each was
measured and how to repeat it. Times are medians, with the fastest and the slowest run in brackets if there
were several. A factor is the other program's median over that of oocpr: below 1, oocpr loses.
"""
PASSES = """
Damping 0.85, tiles as an import makes them by default; in brackets gathers of edges, tile-local sweeps
included, in full passes.
"""
ORDERS = """
[Orders](node-orders.md) by `oocpr import --order` within 4 GiB: bytes per edge, passes of method `mixed` to a
residual of 1e-10 in one stripe and in four, and bytes to an answer, encoded bytes times passes in one stripe,
over those of the best order. What `auto` chose, and how it compares; time of the whole import and the most
memory of its process.
"""
SKIPPING = """
Passes' worth of bytes to a residual of 1e-11, without and with skipping; from nothing and, with edges added,
from the ranks of before. Who skips is told for nothing how much residual each of 64 tiles holds; a run would
have to read a tile to know. Even so it saves a sixth at most, of the crawl x10 (ten times beside itself) a
fiftieth: the states of passes are mixed and take all tiles along. Calls have next to no cycles, so that tiles
are done one after another; there it saves half. With one new edge in a thousand it saves a third at most,
with one in a million two thirds. So no pass of oocpr skips tiles.
"""
PAPERS = """
Whole runs from an open graph to a certified L1 error of 1e-10 on processors: the default, textbook power
iteration in float64, and power iteration that reads parts of numbers at first ([how](how-to/papers.md)).
Factors are times over that of the default, which goes on with the decoded graph that its first run has left
in memory; the others decode it in each run. `oocpr bench papers`, in a clone of the repository, runs the
same program; with `--quick` it counts one run of each, on graphs of up to a million edges, and needs no
folder of graphs: it takes the one that comes with the sources.
"""
PAPERS_DEVICE = """
The same with a device: whole runs from an open graph in the page cache, factors to the default, which is
`--device auto` and leaves graphs of up to 262 k edges to the processors; on the device tiles are decoded in
each run. Most of the time of graphs of up to a few million edges is the start of a run there, which all
systems share: 10 to 12 ms on the nine smallest graphs. So CPMS takes 3.4 times as long as the default on
cit-HepTh and soc-Slashdot0902, and as long as it on p2p-Gnutella31, where power iteration needs 20 passes.
CPMS in 2 segments is up to 1.6 times as fast as float64 in its own layout, one thread per row, on seven of
the graphs, and not on the others.
"""
PAPERS_STREAMED = """
The same with `--device-memory`: as little as CPMS takes, which then decodes the graph in every sweep; R-MAT
22 also within 160 MiB, where no system keeps the graph on the device, and CPMS has no room for its vectors.
The default keeps the eleven real graphs on the device, with a shorter history if it must, or leaves them to
processors. On the crawl that is ten times as large it has rows in memory of the host: its 21 passes take as
long as 122 of power iteration by its own product, and by the papers' rule, a change below 1e-10, it is
behind: 216 ms, and 196. It is ahead of all systems of the papers.
"""
SUBGRAPHS = """
Whole runs to a certified 1e-10, as on the eleven graphs above, of hollins and of subgraphs of a drawn graph
of the shape of a link set of Wikipedia, which is not the paper's: nodes of a random sample keep few edges.
With 14 M edges the default loses: power iteration needs few passes, of 13 ms each. Those of the default take
22 ms, 4 of them for mixing, which saves none there: the default took 18 passes without it, too, and
`--method residual` ranks this graph in 0.41 s. Up to 4 M edges the default is `components`. On its own graph
and another machine, Jiang 2014 has 0.29, 0.76, 2.10 and 6.43 s on four cores and 0.014, 0.028, 0.056 and
0.126 s on a GPU.
"""
SUBGRAPHS_DEVICE = """
The same graphs on another machine, whose processors take longer for each of them. Columns that begin with
"cuda" are of its device, the others of its processors; factors are to the default on the processors. On the
device the default takes 11 to 50 ms, and as many passes as power iteration on the largest graph. With up to
500 k nodes the default is faster on the processors than on the device, and with 100 k nodes kernels of the
paper are nearly as fast as the default on the device.
"""
SEGMENTS = """
One product of R-MAT of 263 M edges with matrix values and vector cut alike, a thread a row, and how many
times as fast as float64 in the same layout. Rows of R-MAT are of very unequal length, which a thread a row
suits badly: 16 bits pay most. Rows one after the other are slower than float64 from 32 bits of four segments
on. On the web-like graph of 296 M edges, rows of equal length, 16 bits are 2.24 times as fast as float64 with
rows one after the other, and 1.54 times with rows side by side; 32 of two segments 1.30 and 1.18 times.
"""
CONTEST = """
Ranks for single nodes, each given as a vector of all nodes: time, passes, the largest L1 error and how many
of the first 20 are right. The report stops at a change of 1e-6 or after 30 passes, the default certifies an
L1 error of 1e-6; on its own graph and machine the report has 1600, 1000, 800, 800 and 600 ms. On
p2p-Gnutella31 and debian-bookworm-deps, where the report stops after one pass, its steps take 0.8 to 1.2
times as long as the default, with errors of 4e-4 and 5e-6.
"""
PEERS = """
Every program starts from its own graph in memory, oocpr from an open graph that has been ranked once; the
second row starts from the store on disk. Peers are given the tolerance at which their true error first
reaches 1e-10.
"""
SEEDS = """
Time per seed, from an open graph, and how many times that of one seed of a thousand which are ranked in one
run. Seeds are single nodes; those of oocpr are certified to 1e-10, and of the others the worst L1 error of a
few seeds is given.

32 seeds of cnr-2000 take five to six times as long as one. Reading what their sweeps gather, at the same
addresses and with nothing computed, takes 3.2 to 3.9 times as long as one seed in blocks of sixteen, and 4.3
to 4.8 times in blocks of eight; for R-MAT 22, it is 6.6 to 6.7 times in blocks of sixteen. Nor do a few
directions slow the sweeps down that all seeds could share: of a sweep of the largest component of cnr-2000,
forty eigenvalues lie between 0.745 and 0.778.
"""
SEEDS_DEVICE = """
The same for a large graph on a device, where sixteen seeds share each pass, or eight if no more are left. A
pass of sixteen takes 34 ms: 18 for the product of the edges with all vectors, and 16 for rows, which each
seed has of its own; those that no edge reaches are passed over. The slowest of the five runs of 32 seeds was
the first, which compiled the kernels for sixteen. One seed by itself takes twice as long as uniform ranks,
0.3 s there: its name is looked up in all blocks of the store, and its teleport vector has 67 million numbers.
Peers are as for two cores, one process each, all at the same time on 32 cores; what their ranks are apart
from those of oocpr is an L1 distance. The limit counts the time to load the graph, too.
"""
SWEEPS = """
A whole pass of method `residual` beside one iteration of the others. GAP's binary is ahead in single
sweeps, but for the larger graph imported by out-degree, whose most gathered numbers then stay in the cache.
"""
DISKS = """
R-MAT of 131 M edges, columns of 525 MB plain; factors to the first row. GridGraph reads through the page
cache and drops dangling mass.
"""
RATES = """
Medians of rounds in random order; "disk" is sequential reading of random bytes past the page cache.
"""
IMPORTS = """
R-MAT of 134 M edges before duplicates are merged, files in the page cache. NetworKit builds its graph in
memory.
"""
DASK = """
"fixed": a graph whose computation is almost nothing. "share": R-MAT of 65 M edges beside bare processes.
"""
PLANS = """
Runs in processes of their own on two cores. Passes of less than 7 ms are predicted too short, because what
Python does between tiles is left out. Nothing known of a stored graph predicts how many passes mixing
takes: 6 to 40 where rows are swept inside tiles, up to 158 where they are not.
"""
DEVICE = """
Medians of ten runs, the fastest in brackets; all ten have the same bits. The device waits for a longer or
shorter time by how fast the host is: passes are recorded as CUDA graphs before the first of them, once for
the rows of a run, or of all runs of many seeds, and launched as such.
"""
START = """
From a store whose files are in the page cache to a certified 1e-10; compiled before. The process imports
CuPy and makes the context of the device before it calls `pagerank`. R-MAT of 1.06 G edges, by out-degree.
Past the page cache, from a disk that gives 3.2 GB/s, a new process takes 2.60 s (2.51-2.76) for R-MAT, 1.47 s
(1.34-1.55) of them in `pagerank`.
"""
START_LARGE = """
R-MAT of 2^28 and 2^30 nodes as drawn, and the first by out-degree, files in the page cache, which gives 41 to
42 GB/s to eight threads, 33 where they are by out-degree. All tiles stay on the device, of whose memory runs
take 36.6 and 85.6 GiB as drawn; of the host's they take 22 and 18 % of the bytes of the tiles. A later pass
takes 87 and 400 ms, 38 by out-degree.
"""
KERNELS = """
Groups of tiles decoded and multiplied by the product that `--kernel` names; in brackets, per pass, what is
spent on decoding and laying out, once if layouts fit into memory, else in every pass. All ranks lie within
their bound of 1e-10, after 15 passes of the web-like graph and 14 of R-MAT; `edges`, which divides, takes
power iteration, 42 and 36. Within 2 GiB of R-MAT, where `balanced` has its rows on the device for a shorter
history, it takes 15 passes in 127 small groups: 0.75 s in all, where `csr-16` takes 1.54 s. That is 0.39 ms
for each group, of which the link takes 0.28; it was 0.31 on another machine.
"""
PRODUCT = """
Columns are plain with all products but those that say packed, which balanced takes where there is no
room for plain ones. The limit gathers and adds one number per edge,
without rows; it can be passed if hubs are kept in shared memory. On rows of equal length, as the web-like
graph has, SELL-C-sigma on plain columns is faster than balanced.
"""
STREAM = """
No tile stays on the device. If a pass takes longer than the link needs, tiles are swept again while they
are there, which saves more passes than it costs.
"""
BUDGETS = """
Imported by out-degree. The ranks of all columns but the second have the same bits. Measured with an earlier
version, in which rows left the device sooner.
"""
SEVERAL = """
By out-degree; three runs each. Links of all devices at once: 110 GB/s (two), 171 GB/s (four).
"""
WORKERS = """
Workers that are up, from the store, whose files are in the page cache, to the same bits. "all": all tiles on
the devices; "1GiB": of each device, so that tiles and rows pass over its link. Medians of five runs.
Workers take longer than one process in each case.
"""
TWO = """
R-MAT of 1.06 G edges by out-degree, all tiles on the devices, each run in a process of its own, files in the
page cache. Two devices take 0.6 of the time for a pass, but longer to open and to bring the ranks: there are
too few passes for the second to pay.
"""
R28 = """
As drawn, with an earlier version; the newer figures with all memory of an H200 are above. Past the page cache
a new process takes 10.8 s (9.45-11.1), 9.18 s (7.98-9.28) of them in `pagerank`, with a newer version
(9e5998e).
"""
R30 = """
1.07 G nodes, 48 GiB as stored, with earlier versions; the newer figures of one device are above.
"""

PROGRAMS = {
    "oocpr": "**oocpr**",
    "oocpr-store": "**oocpr**, opening and decoding the store",
    "oocpr-degree": "**oocpr**, imported with `--order degree`",
    "gap-pr_spmv": "GAP pr_spmv, float64",
    "gap-pr_spmv-huge": "GAP pr_spmv, float64, huge pages",
    "gap-pr": "GAP pr (Gauss-Seidel), float64",
    "scipy": "SciPy",
    "scikit-network": "scikit-network",
    "igraph": "igraph (PRPACK)",
    "networkit": "NetworKit",
    "fast-pagerank": "fast-pagerank",
    "graphblas-algorithms": "graphblas-algorithms",
}
PRODUCTS = {
    "balanced, bits16": "**balanced** (default), bits16",
    "balanced, packed, bits16": "balanced, columns packed, bits16",
    "limit, plain columns, bits16, 8 x 8": "limit: gathering alone, bits16",
    "binned, bits16": "binned by row size (Wu 2010), bits16",
    "csr-vector, bits16": "one warp per row, bits16",
    "csr-16, bits16": "16 threads per row, bits16",
    "csr-scalar, bits16": "one thread per row, bits16",
    "ell, bits16": "one thread per row, SELL-C-sigma, bits16",
    "bcsr, bits16": "blocks 1 x 4 (Shan 2010), bits16",
    "chunked, bits16": "chunks in shared memory, bits16",
    "exchange, bits16": "one thread per edge, exchange (Jiang 2014), bits16",
    "edges, float64": "one thread per edge, dividing (Jiang 2014), float64",
    "balanced, bits8": "**balanced**, bits8",
    "balanced, packed, bits8": "balanced, columns packed, bits8",
    "limit, plain columns, bits8, 8 x 8": "limit: gathering alone, bits8",
    "balanced, float32": "**balanced**, float32",
    "balanced, packed, float32": "balanced, columns packed, float32",
    "limit, plain columns, float32, 8 x 8": "limit: gathering alone, float32",
    "cuSPARSE float32": "cuSPARSE, float32",
    "balanced, float64": "**balanced**, float64",
    "balanced, packed, float64": "balanced, columns packed, float64",
    "limit, plain columns, float64, 8 x 8": "limit: gathering alone, float64",
    "cuSPARSE float64": "cuSPARSE, float64",
}
DISK = {
    "rank keep, direct": "**oocpr**, `--io direct`",
    "rank keep, buffered": "**oocpr**, `--io buffered`",
    "rank degree, direct": "**oocpr**, imported with `--order degree`, `--io direct`",
    "rank degree, buffered": "**oocpr**, imported with `--order degree`, `--io buffered`",
    "GridGraph": "GridGraph, float32",
    "Dask": "Dask, Zarr and SciPy, two workers, page cache warm",
}
IMPORTERS = {"oocpr": "**oocpr**", "networkit": "NetworKit", "gap-converter": "GAP's converter"}
