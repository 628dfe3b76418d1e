"""A process that runs `train` in forks of itself, and kills them with SIGKILL where it is told to.

It imports once and forks often, so that a run costs no more than its steps. Each line of its input is a request,
`{"arguments": [...], "kill": [kind, number]}`, and each line of its output an answer: how the fork ended, what it
said, and, if it was to be watched and not killed, every place where it could have been:

    warm, 0       nowhere, and in no fork: whatever is done once is done before the forks
    watch, 0      nowhere: count the lines that a save executes, and the writes that it makes
    line, n       before the n-th of these lines
    half, n       in the middle of the n-th of these writes
    after, s      s seconds after the fork
"""

import contextlib
import importlib
import io
import json
import linecache
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reference import checkpoint, cli

WHERE_FILES_CHANGE = (
    (checkpoint, "write_whole"),
    (cli.RunFolder, "log"),
    (cli.RunFolder, "save"),
    (cli.RunFolder, "go_back_to"),
)


def die(*_: object) -> None:
    """Die of SIGKILL: nothing is flushed, nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


def watch_lines(seen: Callable[[str, str], None]) -> None:
    """Call `seen` before each line of the functions that change files, with function and line."""
    codes = {getattr(place, name).__code__ for place, name in WHERE_FILES_CHANGE}

    def in_function(frame: Any, event: str, _: object) -> Any:
        if event == "line":
            code = frame.f_code
            seen(code.co_name, linecache.getline(code.co_filename, frame.f_lineno).strip())
        return in_function

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def watching(*arguments: Any) -> Any:
            before = sys.gettrace()
            sys.settrace(lambda frame, *_: in_function if frame.f_code in codes else None)  # here alone: it is slow
            try:
                return function(*arguments)
            finally:
                sys.settrace(before)

        return watching

    for place, name in WHERE_FILES_CHANGE:
        setattr(place, name, watched(getattr(place, name)))


class Watched:
    """A file whose writes are seen."""

    def __init__(self, file: Any, seen: Callable[[Any, memoryview], None]) -> None:
        self.file = file
        self.seen = seen

    def __enter__(self) -> "Watched":
        self.file.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.file.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, data: Any) -> int:
        """Write, once it has been seen."""
        self.seen(self.file, memoryview(data))
        return self.file.write(data)


def watch_writes(seen: Callable[[Any, memoryview], None]) -> None:
    """Call `seen` before each write to a file that `Path.open` opens for it."""
    whole = Path.open

    def opened(self: Path, mode: str = "r", **options: Any) -> Any:
        file = whole(self, mode, **options)
        return file if mode == "rb" else Watched(file, seen)

    Path.open = opened


def run(arguments: list[str], kind: str, number: float, report: Path) -> None:
    """Run the command in this process, a fork, and die where it is told."""
    lines: list[tuple[str, str]] = []
    writes: list[tuple[str, int]] = []

    def at_line(function: str, line: str) -> None:
        if kind == "line" and len(lines) == number:
            die()
        lines.append((function, line))

    def at_write(file: Any, data: memoryview) -> None:
        if kind == "half" and len(writes) == number:
            file.write(data[: len(data) // 2])
            file.flush()
            die()
        writes.append((Path(file.name).name, len(data)))

    if kind in ("watch", "line"):
        watch_lines(at_line)
    if kind in ("watch", "half"):
        watch_writes(at_write)
    try:
        cli.app(["train", *arguments], standalone_mode=True)
    finally:
        with open(report, "w") as file:
            json.dump({"lines": lines, "writes": writes}, file)


def answer(arguments: list[str], kind: str, number: float, folder: Path) -> dict[str, Any]:
    """Fork, wait, and say what became of the fork."""
    if kind == "warm":
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            cli.app(["train", *arguments])
        return {}
    out, err, report = folder / "out", folder / "err", folder / "report"
    for file in (out, err, report):
        file.write_text("")
    if (child := os.fork()) == 0:
        code = 1
        try:
            os.dup2(os.open(out, os.O_WRONLY), 1)
            os.dup2(os.open(err, os.O_WRONLY), 2)
            run(arguments, kind, number, report)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    if kind == "after":
        time.sleep(number)
        os.kill(child, signal.SIGKILL)  # one that has ended waits for us, and its number is still its own
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    seen = json.loads(report.read_text() or "{}")
    return {"exit": ended, "out": out.read_text(), "err": err.read_text(), **seen}


def main() -> None:
    """Import what is asked for, and answer each request."""
    for module in sys.argv[1:]:
        importlib.import_module(module)
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            request = json.loads(line)
            print(json.dumps(answer(request["arguments"], *request["kill"], Path(folder))), flush=True)


if __name__ == "__main__":
    main()
