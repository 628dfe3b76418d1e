"""Expected failures: what a subject is known to do otherwise, each with its reason, in a file beside the subject.

    [[xfail]]
    property = "softmax.*_all_minus_inf_*"   # a glob over property ids
    reason = "torch divides 0 by 0 there, and gives NaN"
    dtype = "float64"                        # optional: only when the subject is checked in this dtype
    link = "https://..."                     # optional

They are strict: one that passes after all is a failure, and one that matches no property at all is an error.
"""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path


class BadXfails(Exception):
    """The file of expected failures cannot be used; the message says why in one line."""


@dataclass(frozen=True, kw_only=True)
class Xfail:
    """One expected failure."""

    property: str
    reason: str
    dtype: str | None = None
    link: str | None = None

    def matches(self, property_id: str, dtype: str) -> bool:
        """Say whether this expects the property to fail for a subject of this dtype."""
        return fnmatchcase(property_id, self.property) and self.dtype in (None, dtype)


def read(file: Path | None) -> tuple[Xfail, ...]:
    """Read the file, if there is one. Raises BadXfails."""
    if file is None or not file.exists():
        return ()
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise BadXfails(f"{file.name}: {problem}") from problem
    if set(data) - {"xfail"} or not isinstance(data.get("xfail", []), list):
        raise BadXfails(f"{file.name}: it may hold [[xfail]] tables and nothing else, got {', '.join(data)}")
    return tuple(_read_one(file.name, number, table) for number, table in enumerate(data.get("xfail", []), 1))


def _read_one(file: str, number: int, table: dict) -> Xfail:
    known, needed = ("property", "reason", "dtype", "link"), ("property", "reason")
    if unknown := [name for name in table if name not in known]:
        raise BadXfails(f"{file}: xfail {number} has {unknown[0]!r}; known are {', '.join(known)}")
    for name in needed:
        if not str(table.get(name, "")).strip():
            raise BadXfails(f"{file}: xfail {number} needs a {name}")
    if wrong := [name for name, value in table.items() if not isinstance(value, str)]:
        raise BadXfails(f"{file}: xfail {number}: {wrong[0]} must be text")
    return Xfail(**table)


def check_known(xfails: Iterable[Xfail], known: Iterable[str], file: Path | None) -> None:
    """Raise BadXfails for an expected failure that matches no property there is."""
    ids = list(known)
    for xfail in xfails:
        if not any(fnmatchcase(property_id, xfail.property) for property_id in ids):
            raise BadXfails(f"{file.name if file else 'xfails'}: {xfail.property!r} matches no property")


def expected(xfails: Iterable[Xfail], property_id: str, dtype: str) -> Xfail | None:
    """Give the first expected failure that matches."""
    return next((xfail for xfail in xfails if xfail.matches(property_id, dtype)), None)
