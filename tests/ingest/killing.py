"""Runs imports in processes that are killed; a program of its own, so that it can fork without threads.

Reads a JSON object a line: the source and the parameters of an import, and when to kill it. Answers with the
exit status, what the import told, the events that its journal got, bytes read of the source, and calls that
change names and files.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

from oocpr.errors import OocprError
from oocpr.ingest import journal
from oocpr.ingest.build import build_store
from oocpr.sources import open_source
from oocpr.sources.files import PeekableStream
from oocpr.sources.rmat import Rmat

CALLS = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(event: int, moment: str) -> None:
    """Let the process die when it adds an event to the journal: before it, in its middle, or behind it."""
    add = journal.Journal.add
    count = 0

    def added(self: journal.Journal, what: dict[str, Any], *, durable: bool = False) -> None:
        nonlocal count
        count += 1
        if count != event:
            add(self, what, durable=durable)
            return
        if moment == "torn":
            line = journal.line_of(what)
            os.pwrite(self._file, line[: len(line) // 2], self._ends[-1])
        elif moment == "after":
            add(self, what, durable=durable)
        kill()

    journal.Journal.add = added  # type: ignore[method-assign]


def count_calls(last: int | None, folder: str) -> list[int]:
    """Count what changes names and files in a folder; let the process die before the call number `last`."""
    count = [0]
    numbers = itertools.count(1)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        writes = (
            event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        )
        if (writes or event in CALLS) and str(arguments[0]).startswith(folder):
            count[0] = number = next(numbers)  # whichever thread asks, each number comes once
            if number == last:
                kill()

    sys.addaudithook(watch)
    return count


def run(job: dict[str, Any], answer: Path) -> None:
    """Import, in a process that may be killed meanwhile."""
    if "event" in job:
        kill_at(job["event"], job["moment"])
    if "largest_file" in job:
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["largest_file"],) * 2)
    told: list[str] = []
    added = read = 0
    add, readinto = journal.Journal.add, PeekableStream.readinto

    def counted(*arguments: Any, **more: Any) -> None:
        nonlocal added
        added += 1
        add(*arguments, **more)

    def measured(self: PeekableStream, buffer: Any, /) -> int:
        nonlocal read
        read += (got := readinto(self, buffer))
        return got

    journal.Journal.add, PeekableStream.readinto = counted, measured  # type: ignore[method-assign]
    error = None
    calls = count_calls(job.get("call"), str(Path(job["path"]).parent))
    try:
        source = Rmat(**job["rmat"]) if "rmat" in job else open_source(job["source"], **job.get("ways", {}))
        build_store(source, job["path"], on_message=told.append, **job["options"])
    except OocprError as raised:
        error = [raised.cause, raised.remedy, *getattr(raised, "__notes__", [])]
    said = {"told": told, "added": added, "read": read, "calls": calls[0], "error": error}
    answer.write_text(json.dumps(said))


def main() -> None:
    """Serve until the input ends."""
    answer = Path(sys.argv[1])
    for line in sys.stdin:
        job = json.loads(line)
        answer.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            run(job, answer)
            sys.stdout.flush()
            os._exit(0)
        if "seconds" in job:
            time.sleep(job["seconds"])
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said = json.loads(answer.read_text()) if status == 0 else {}
        print(json.dumps({"status": status, **said}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
