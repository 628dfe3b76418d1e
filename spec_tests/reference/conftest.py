"""What the tests of the commands that train have in common."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Give a file to train on."""
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "text"
    path.write_bytes(b"to be or not to be, that is the question. " * 20)
    return path


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Let SIGINT mean Ctrl-C, as on a terminal, even where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
