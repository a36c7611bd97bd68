"""GraphAr archives: a YAML file describes the links, whose ends are in Parquet files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oocpr.errors import InputError, SetupError, UsageError, install_remedy
from oocpr.sources.formats.parquet import ParquetFiles
from oocpr.sources.io.locations import LocalFile, place_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from oocpr.sources.io.locations import AnyPath, Place

COLUMNS = ("_graphArSrcIndex", "_graphArDstIndex")
_REMEDY = "Check that it is the archive's file NAME.edge.yml, and that all of the archive is there."


class GraphAr(ParquetFiles):
    """Links of one type between nodes of one type, in an archive of Apache GraphAr with Parquet files.

    Node v is the one with index v in the archive; nodes without links count, too.

    Parameters
    ----------
    path
        What describes the links: ``NAME.edge.yml``, in the folder that its prefix begins from.
    labels
        A file with the label of each node, or None.

    Raises
    ------
    InputError
        No such archive, one without Parquet files, or whose links have nodes of two types. While blocks are
        read: files that are missing or damaged.
    """

    def __init__(self, path: AnyPath | Sequence[AnyPath], labels: AnyPath | None = None) -> None:
        place = place_of(path[0] if isinstance(path, list | tuple) else path)  # type: ignore[arg-type]
        if not isinstance(place, LocalFile):
            raise UsageError(f"{place} is no file on this machine.", "Fetch the archive first.")
        known = _parsed(place.path)
        inside, side = adjacency(known, str(place))
        sizes = known.get(f"{side}_chunk_size"), known.get("chunk_size")
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            raise InputError(f"{place} does not say how many nodes and links are in a file.", _REMEDY)
        nodes = _count(place.path.parent / inside / "vertex_count")
        chunks = list(_chunks(place.path.parent / inside, nodes, *(int(size or 0) for size in sizes)))
        # Without links there is no file to read.
        super().__init__(chunks or [place], labels, *COLUMNS)
        self.places = list(chunks)
        self.name, self.title = place.path.name.partition(".")[0], str(place)
        self.nodes = nodes
        self._described = place
        if known.get("directed") is False:
            self.notices.append(f"{place} says that links go both ways; they are taken in one.")

    def _all_places(self) -> Sequence[Place]:
        return [self._described, *self.places]


def _parsed(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise SetupError(
            "GraphAr archives are described in YAML, for which PyYAML is missing.", install_remedy("graphar")
        ) from error

    try:
        known: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no YAML: {' '.join(str(error).split())[:200]}", _REMEDY) from error
    found: dict[str, Any] = known if isinstance(known, dict) else {}
    if not isinstance(found.get("adj_lists"), list) or not {"src_type", "dst_type"} <= found.keys():
        raise InputError(f"{path} describes no links of a GraphAr archive.", _REMEDY)
    return found


def adjacency(known: Mapping[str, Any], title: str) -> tuple[str, str]:
    """Folder of the lists of links that are read, relative to the description, and the end they go by.

    Raises
    ------
    InputError
        Where links have nodes of two types, or none are in Parquet files.

    Examples
    --------
    >>> lists = [{"ordered": True, "aligned_by": "dst", "file_type": "parquet"}]
    >>> known = {"src_type": "a", "edge_type": "to", "dst_type": "a", "adj_lists": lists}
    >>> adjacency(known, "a_to_a.edge.yml")
    ('edge/a_to_a/ordered_by_dest/', 'dst')
    """
    types = known["src_type"], known["dst_type"]
    if types[0] != types[1]:
        raise InputError(
            f"{title}: links go from {types[0]} to {types[1]}, nodes of two types whose indices overlap.",
            "Name links between nodes of one type.",
        )
    lists = [one for one in known["adj_lists"] if one.get("file_type") == "parquet"]
    if not lists:
        raise InputError(f"{title} has no links in Parquet files.", "Write the archive with Parquet files.")
    best = min(lists, key=lambda one: (one.get("aligned_by") != "src", not one.get("ordered")))
    side = "src" if best.get("aligned_by") == "src" else "dst"
    order = "ordered" if best.get("ordered") else "unordered"
    usual = f"{order}_by_{'source' if side == 'src' else 'dest'}/"
    prefix = known.get("prefix") or f"edge/{types[0]}_{known.get('edge_type')}_{types[1]}/"
    return f"{prefix}{best.get('prefix') or usual}", side


def _count(path: Path) -> int:
    """The number in a file of an archive: 64 bits, little-endian."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.", _REMEDY) from error
    if len(data) != 8:
        raise InputError(f"{path} holds {len(data)} bytes in place of a number of 8.", _REMEDY)
    return int.from_bytes(data, "little", signed=True)


def _chunks(folder: Path, nodes: int, part_nodes: int, chunk_edges: int) -> Iterator[LocalFile]:
    """Every file of links, as the counts of the archive say, so that none can lack unnoticed."""
    for part in range(-(-nodes // part_nodes)):
        edges = _count(folder / f"edge_count{part}")
        for chunk in range(-(-edges // chunk_edges)):
            path = folder / "adj_list" / f"part{part}" / f"chunk{chunk}"
            if not path.is_file():
                raise InputError(f"{path} is missing.", _REMEDY)
            yield LocalFile(path)
