"""The account of the catalogue of mistakes is whole, and each mistake has its words."""

import re
from collections.abc import Iterator

import pytest

from reference.components import COMPONENTS
from spec_tests.kit.cli import app
from spec_tests.pitfalls import catalogue
from spec_tests.pitfalls.pitfall import Equivalence, Pitfall, Variant, all_variants, equivalences, pitfalls
from spec_tests.spec import all_properties

PROGRAMS = ("training", "data", "checkpoints", "generation", "modules", "init_params")
"""What has pitfalls and is no component: our own programs."""

each_variant = pytest.mark.parametrize("variant", all_variants(), ids=lambda variant: variant.id)


def words_of(variant: Variant) -> Iterator[str]:
    """Give the sentences of a pitfall or an equivalence."""
    yield from (variant.does, variant.shows, variant.mend) if isinstance(variant, Pitfall) else (variant.says,)


@pytest.mark.parametrize("kind", catalogue.FOLDERS)
def test_the_counts_add_up(kind: str) -> None:
    """Coded, waiting and not applicable are all of the 281 mistakes and the 18 equivalences."""
    assert catalogue.counts(kind).whole == catalogue.SIZES[kind]


def test_an_entry_stands_in_one_place() -> None:
    """What is coded is not listed as waiting or not applicable, and nothing is listed twice."""
    listed = [entry.id for entries in catalogue.listed() for entry in entries]
    assert len(set(listed)) == len(listed)
    assert sorted(set(listed) & set(catalogue.coded())) == []


def test_what_is_not_coded_says_why() -> None:
    """Each entry that is no code has an id of the catalogue, a sentence and a reason."""
    folders = sum(catalogue.FOLDERS.values(), ())
    for entry in (entry for entries in catalogue.listed() for entry in entries):
        assert re.fullmatch(rf"({'|'.join(folders)})/\w+", entry.id)
        assert is_one_sentence(entry.mistake), entry.mistake
        assert entry.reason
        assert not entry.reason.endswith(".")


def test_ids_are_unique_and_well_formed() -> None:
    """An id is component.name, in small letters, of a component or of one of our programs, and no other has it."""
    ids = [variant.id for variant in all_variants()]
    assert sorted(set(ids)) == sorted(ids)
    for variant in all_variants():
        assert re.fullmatch(r"[a-z_]+\.[a-z0-9_]+", variant.id)
        assert variant.component in (*COMPONENTS, *PROGRAMS)


@each_variant
def test_every_variant_has_its_words(variant: Variant) -> None:
    """What it does, how it shows and how to mend it are one sentence each; sources are links."""
    for words in words_of(variant):
        assert is_one_sentence(words), words
    for source in variant.sources:
        assert re.fullmatch(r"https://\S+", source), source
    folders = sum(catalogue.FOLDERS.values(), ())
    for entry in variant.catalogue:
        assert re.fullmatch(rf"({'|'.join(folders)})/\w+", entry), entry


@pytest.mark.parametrize("pitfall", pitfalls(), ids=lambda pitfall: pitfall.id)
def test_every_pitfall_names_what_catches_it(pitfall: Pitfall) -> None:
    """It stands in for something, and the first that catches it needs no oracle, unless it says why it must."""
    assert bool(pitfall.touches) != bool(pitfall.programs)
    assert pitfall.caught_by
    oracles = {id_without_case(prop.id): prop.function.statement.oracle for prop in all_properties()}
    oracles |= {prop.id: prop.function.statement.oracle for prop in all_properties()}
    for name in pitfall.caught_by:
        assert name.startswith("spec_tests.") if pitfall.programs else name in oracles, f"{name} is no property"
    assert pitfall.golden or not oracles.get(pitfall.caught_by[0], False)


@pytest.mark.parametrize("equivalence", equivalences(), ids=lambda equivalence: equivalence.id)
def test_what_lies_outside_lies_outside_a_condition(equivalence: Equivalence) -> None:
    """Only what holds on a condition may fail a property."""
    assert bool(equivalence.outside) == (equivalence.condition != "always")


def test_the_command_prints_the_account() -> None:
    """`pitfalls` prints every id and the counts, with --waiting the rest, and with an id all there is to say."""
    from typer.testing import CliRunner

    table = CliRunner().invoke(app, ["pitfalls", "--waiting"])
    assert table.exit_code == 0
    for variant in all_variants():
        assert f"  {variant.id.partition('.')[2]}: " in table.output
    for entry in (entry for entries in catalogue.listed() for entry in entries):
        assert f"{entry.id}: " in table.output
    assert re.findall(r"^(\d+) (\w+): \d+ coded, \d+ waiting, \d+ not applicable$", table.output, re.MULTILINE) == [
        ("281", "mistakes"),
        ("18", "equivalences"),
    ]
    whole = CliRunner().invoke(app, ["pitfalls", "cross_entropy.double_softmax"])
    assert whole.exit_code == 0
    for part in ("does", "shows", "mend", "caught by", "catalogue", "source    https://"):
        assert f"\n  {part}" in whole.output
    unknown = CliRunner().invoke(app, ["pitfalls", "nonsense"])
    assert unknown.exit_code == 2
    assert "nonsense: no pitfall" in unknown.stderr


def id_without_case(property_id: str) -> str:
    """Give component.name."""
    return ".".join(property_id.split(".")[:2])


def is_one_sentence(words: str) -> bool:
    """Say whether these are some words, on one line, with a full stop at their end and none before."""
    return len(words.split()) >= 3 and words.endswith(".") and not re.search(r"\n|[.!?]\s+[A-Z]", words)
