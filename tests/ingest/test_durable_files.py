"""Temporary files that outlive their process."""

import numpy as np

from oocpr.ingest.journal import DurableSpillDir


def test_another_process_finds_what_was_synced(tmp_path):
    with DurableSpillDir(tmp_path, {}) as space:
        keys, other = space.file(name="keys"), space.file(1 << 20, name="other")
        for file in (keys, other):
            file.write(0, np.arange(4))
        assert (keys.in_memory, other.in_memory) == (0, 0)  # nothing in memory
        left = space.synced(["keys"])
        assert left == {"keys": 32}
        keys.write(32, np.arange(9))  # no part of what is left
        space.drop(other)
        space.file().write(0, np.arange(4))
        assert [path.name for path in tmp_path.iterdir()] == ["keys"]
    with DurableSpillDir(tmp_path, left) as space:
        file, out = space.file(name="keys"), np.empty(4, np.int64)
        file.read(0, out)
        assert (file.size, out.tolist()) == (32, [0, 1, 2, 3])
        assert file.reserve(8) == (32, None)
    with DurableSpillDir(tmp_path, {}) as space:
        assert space.file(name="keys").size == 0
    assert (tmp_path / "keys").stat().st_size == 0
