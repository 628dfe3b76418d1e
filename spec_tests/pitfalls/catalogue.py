"""The account of the catalogue: each entry is code, waits for what is absent, or is no mistake of a transformer."""

import functools
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

from spec_tests.pitfalls.pitfall import Pitfall, Variant, all_variants

FOLDERS = {"mistakes": ("components", "systems"), "equivalences": ("equivalences",)}
"""What the catalogue holds, and the folders of its ids: `systems/no_zero_grad`."""
SIZES = {"mistakes": 281, "equivalences": 18}
"""How many entries it has."""

LISTED = Path(__file__).with_name("waiting.toml")


@dataclass(frozen=True)
class Entry:
    """An entry of the catalogue that is no code, and why."""

    id: str
    mistake: str
    reason: str


@dataclass(frozen=True)
class Counts:
    """How many entries are coded, waiting and not applicable."""

    coded: int
    waiting: int
    not_applicable: int

    @property
    def whole(self) -> int:
        """Give the number of entries."""
        return self.coded + self.waiting + self.not_applicable


@functools.cache
def coded() -> dict[str, tuple[str, ...]]:
    """Give each entry that is code, with the ids of its variants."""
    found: dict[str, tuple[str, ...]] = {}
    for variant in all_variants():
        for entry in variant.catalogue:
            found[entry] = (*found.get(entry, ()), variant.id)
    return found


@functools.cache
def listed() -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    """Give the entries that wait for a component, and those that are no mistake of a transformer."""
    data = tomllib.loads(LISTED.read_text(encoding="utf-8"))
    return (
        tuple(Entry(entry["id"], entry["mistake"], entry["absent"]) for entry in data["waiting"]),
        tuple(Entry(entry["id"], entry["mistake"], entry["reason"]) for entry in data["not_applicable"]),
    )


def counts(kind: str) -> Counts:
    """Count the `mistakes` or the `equivalences`; a mistake that is coded twice counts once."""

    def of_kind(ids: Iterator[str]) -> int:
        return sum(entry.split("/")[0] in FOLDERS[kind] for entry in ids)

    waiting, not_applicable = (of_kind(entry.id for entry in entries) for entries in listed())
    return Counts(of_kind(iter(coded())), waiting, not_applicable)


# ------------------------------------------------------------------------------------------------- what is printed


def text(which: str | None = None, *, waiting: bool = False) -> str:
    """Give what `transformer-spec pitfalls` prints: the table, one component of it, or all about one id.

    Raises LookupError where there is no such component or id.
    """
    if which is None:
        lines = [*_tables(all_variants()), *(_waiting() if waiting else ()), *_summary()]
        return "\n".join(lines)
    named = [variant for variant in all_variants() if which in (variant.id, variant.component)]
    if not named:
        known = ", ".join(dict.fromkeys(variant.component for variant in all_variants()))
        raise LookupError(f"{which}: no pitfall and nothing that has pitfalls; known are {known}")
    return "\n".join(_about(named[0]) if named[0].id == which else _tables(named))


def _tables(variants: tuple[Variant, ...] | list[Variant]) -> Iterator[str]:
    for component in dict.fromkeys(variant.component for variant in variants):
        yield component
        for variant in variants:
            if variant.component == component:
                name = variant.id.partition(".")[2]
                yield _indented(f"{name}: {_sentence(variant)}", 2)
        yield ""


def _sentence(variant: Variant) -> str:
    if isinstance(variant, Pitfall):
        return variant.does
    return f"(no mistake: {variant.condition}) {variant.says}"


def _about(variant: Variant) -> Iterator[str]:
    yield variant.id
    if isinstance(variant, Pitfall):
        seen = {"raises": "it raises", "silent": "nothing fails", "training": "nothing fails, and training suffers"}
        parts = {
            "does": variant.does,
            "shows": variant.shows,
            "mend": variant.mend,
            "visible": seen[variant.visibility],
            "golden": variant.golden,
        }
        caught_by = variant.caught_by
    else:
        parts, caught_by = {"says": variant.says, "condition": variant.condition}, ()
    for name, words in parts.items():
        if words:
            yield _indented(f"{name:<10}{words}", 2, hanging=10)
    for name, items in {"caught by": caught_by, "catalogue": variant.catalogue, "source": variant.sources}.items():
        for place, item in enumerate(items):
            yield f"  {name if place == 0 else '':<10}{item}"


def _waiting() -> Iterator[str]:
    waiting, not_applicable = listed()
    for title, entries in (("waiting", waiting), ("not applicable", not_applicable)):
        yield title
        for reason in dict.fromkeys(entry.reason for entry in entries):
            yield f"  {reason}"
            for entry in entries:
                if entry.reason == reason:
                    yield _indented(f"{entry.id}: {entry.mistake}", 4)
        yield ""


def _summary() -> Iterator[str]:
    for kind in FOLDERS:
        n = counts(kind)
        yield f"{n.whole} {kind}: {n.coded} coded, {n.waiting} waiting, {n.not_applicable} not applicable"


def _indented(words: str, by: int, hanging: int = 4) -> str:
    return fill(
        words, width=118, initial_indent=" " * by, subsequent_indent=" " * (by + hanging),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
