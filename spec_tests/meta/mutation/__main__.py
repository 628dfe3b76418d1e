"""`python -m spec_tests.meta.mutation [stem ...]`: mutate `reference.numpy`, and say what nobody notices.

About a mutant those properties are asked that run the line it changes; first those that noticed others of its function.
The session stands in `runs/mutation`, one database (of cosmic-ray) for each file as it is: a run that was stopped goes
on, and a file that has changed starts anew; where properties have changed, `--again` tries the survivors once more.
`survivors.toml` says of every accepted survivor why it changes nothing.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

import argparse
import contextlib
import difflib
import hashlib
import importlib
import multiprocessing
import resource
import sys
import time
import tomllib
import uuid
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from cosmic_ray.work_db import WorkDB
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkItem, WorkResult

import reference.numpy
from spec_tests.meta.mutation.mutants import Mutant, lines_about, mutants_of
from spec_tests.meta.mutation.trial import (
    comparisons_about,
    first_test_to_notice,
    first_to_notice,
    lines_run,
    numpy_half,
    properties_about,
    put_in_place,
    tests_passing,
    torch_half,
)
from spec_tests.spec import Property, all_properties

HERE = Path(__file__).parent
CONFIG = tomllib.loads((HERE / "config.toml").read_text())
SESSIONS = Path("runs/mutation")
FORK = multiprocessing.get_context("fork")  # all imports are made once, here


def main() -> int:
    """Mutate the files of these stems, or all; 1 where a survivor has no reason, or a reason no survivor."""
    parser = argparse.ArgumentParser(prog="python -m spec_tests.meta.mutation", description=__doc__)
    parser.add_argument("stems", nargs="*", help="files of reference/numpy, norms; all unless given")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=120, help="stop after so long; the next run goes on")
    parser.add_argument("--again", action="store_true", help="try those once more that survived before")
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    paths = sorted(Path(reference.numpy.__file__).parent.glob("*.py"))
    files = [File(path) for path in paths if not options.stems or path.stem in options.stems]
    first_to_notice(all_properties()[:1], numpy_half(), 1)  # Hypothesis reads all sources once: here, not in each trial
    for file in files:
        file.run(options.jobs, until, again=options.again)
    return report(files)


class File:
    """One file of the reference, and its session."""

    def __init__(self, path: Path) -> None:
        self.path, self.source = path, path.read_text()
        self.module = f"reference.numpy{'' if path.stem == '__init__' else '.' + path.stem}"
        self.tests = CONFIG["tests"].get(path.stem, [])
        self.serves_all = path.stem in CONFIG["stems"]
        SESSIONS.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(f"{self.source}{CONFIG['operators']}".encode()).hexdigest()[:12]
        self.session = WorkDB(SESSIONS / f"{path.stem}-{digest}.sqlite", WorkDB.Mode.create)
        if not self.session.num_work_items:
            self.session.add_work_items(map(self._item, mutants_of(self.source, CONFIG["operators"])))

    def _item(self, m: Mutant) -> WorkItem:
        spec = MutationSpec(self.path, m.operator, m.occurrence, m.start, m.end, definition_name=m.function)
        return WorkItem.single(uuid.uuid4().hex, spec)

    def run(self, jobs: int, until: float, *, again: bool = False) -> None:
        """Try every mutant that has not been tried, and `again` those that survived, so many at a time."""
        before = dict(self.session.results)
        pending = [i for i in self.session.work_items if i.job_id not in before]
        if again:
            survived = {job for job, result in before.items() if result.test_outcome == TestOutcome.SURVIVED}
            pending += [i for i in self.session.work_items if i.job_id in survived]
        if not pending:
            return
        pending.sort(key=lambda i: i.mutations[0].start_pos, reverse=True)  # they are taken from the end
        asked = self._sound()
        noticed: Counter[tuple[str, str]] = Counter()
        running: dict[Any, Trial] = {}
        while (pending and time.monotonic() < until) or running:
            while pending and len(running) < jobs and time.monotonic() < until:
                trial = Trial(self, pending.pop(), asked, noticed)
                running[trial.process.sentinel] = trial
            for sentinel in wait(list(running)):
                trial = running.pop(sentinel)
                by = trial.end()
                noticed[trial.function, by or ""] += 1
                outcome = TestOutcome.KILLED if by else TestOutcome.SURVIVED
                result = WorkResult(WorkerOutcome.NORMAL, by, outcome, trial.diff)
                self.session.set_result(trial.item.job_id, result)
                left = len(pending) + len(running)
                print(f"\r{self.path.name}: {left} left  ", end="", file=sys.stderr, flush=True)

    def _sound(self) -> list["Asked"]:
        """Give the properties, comparisons or tests that pass without any change, and the lines that each runs.

        What shape checks refuse is not refused here, where they are off.
        """
        receiver, sender = FORK.Pipe(duplex=False)
        process = FORK.Process(target=_ask_all, args=(sender, self))
        process.start()
        sender.close()
        answer = receiver.recv()
        process.join()
        if isinstance(answer, RuntimeError):
            raise answer
        properties, tests = answer
        asked = [
            Asked(kind, p, n, *p_is) for (kind, p, n), p_is in zip(self.everybody(), properties, strict=True) if p_is
        ]
        return asked + [Asked("tests", test, 0, *test_is) for test, test_is in tests.items()]

    def everybody(self) -> list[tuple[str, Property, int]]:
        """Give the properties and comparisons to ask, each with its kind and the most examples."""
        if self.tests:
            return []
        few, more, twin = (CONFIG["trials"][name] for name in ("few", "more", "twin"))
        stems = CONFIG["stems"].get(self.path.stem, [self.path.stem])
        further = CONFIG["further"].get(self.path.stem, [])
        return [
            *(("property", p, more) for p in properties_about(stems)),
            *(("twin", p, twin) for p in comparisons_about(stems)),
            *(("further", p, few) for p in properties_about(further)),
        ]

    def counts(self) -> tuple[Counter[str], list["Survivor"]]:
        """Count by whom mutants were noticed, and give the survivors."""
        counted: Counter[str] = Counter()
        survivors = []
        items = {item.job_id: item.mutations[0] for item in self.session.work_items}
        for job, result in self.session.results:
            if result.test_outcome == TestOutcome.SURVIVED:
                survivors.append(Survivor.of(self.path.name, items[job], result.diff))
            counted[(result.output or "survived").split(":")[0]] += 1
        counted["untried"] = len(items) - sum(counted.values())
        return counted, survivors


@dataclass(frozen=True)
class Asked:
    """One that may notice a mutant: a property, a comparison with the twin, a property of a further stem, or a test."""

    kind: str
    about: Property | str
    examples: int
    seconds: float
    lines: frozenset[int]

    @property
    def name(self) -> str:
        """Say who."""
        if isinstance(self.about, str):
            return f"tests: {self.about}"
        return f"{'twin' if self.kind == 'twin' else 'property'}: {self.about.id}"

    @property
    def component(self) -> str:
        """Say whom a property is about."""
        return "" if isinstance(self.about, str) else self.about.component


def _ask_all(sender: Connection, file: File) -> None:
    _quietly()
    put_in_place(importlib.import_module(file.module), file.source)  # as a mutant is put there
    try:
        tests = tests_passing(file.tests, str(file.path)) if file.tests else {}
    except RuntimeError as failing:
        sender.send(failing)
        return
    answers: list[tuple[float, frozenset[int]] | None] = []
    for kind, prop, examples in file.everybody():
        since = time.process_time()
        with lines_run(str(file.path)) as lines:
            failing = first_to_notice([prop], torch_half() if kind == "twin" else numpy_half(), examples)
        answers.append(None if failing else (time.process_time() - since, frozenset(lines)))
    sender.send((answers, tests))


class Trial:
    """One mutant in a process of its own."""

    def __init__(self, file: File, item: WorkItem, asked: list[Asked], noticed: Counter[tuple[str, str]]) -> None:
        spec = item.mutations[0]
        self.function = spec.definition_name or ""
        mutant = Mutant(spec.operator_name, spec.occurrence, spec.start_pos, spec.end_pos, self.function)
        code = mutant.code(file.source)
        changed = difflib.ndiff(file.source.splitlines(), code.splitlines())
        self.diff = "\n".join(line for line in changed if line[:2] in ("- ", "+ "))
        self.item = item
        lines = set(lines_about(file.source, spec.start_pos))
        asked = sorted(
            (a for a in asked if not lines.isdisjoint(a.lines)),
            key=lambda a: (-noticed[self.function, a.name], a.seconds),
        )
        near = _near(asked, every=file.serves_all)
        self.receiver, sender = FORK.Pipe(duplex=False)
        self.process = FORK.Process(target=_try, args=(sender, file, code, asked, near))
        self.process.start()
        sender.close()

    def end(self) -> str | None:
        """Say who noticed the mutant: a property, the twin, or the system that ended it; None if nobody did."""
        self.process.join()  # it may still be about to end: its sentinel is ready a little before it is
        with contextlib.suppress(EOFError):  # what is ready may be the end of what was never sent
            if self.receiver.poll():
                return self.receiver.recv()
        if self.process.exitcode < 0:
            return f"signal: {-self.process.exitcode}"
        raise RuntimeError(f"a trial of this mutant ended without a verdict:\n{self.diff}")


def _near(asked: list[Asked], *, every: bool) -> list[Asked]:
    """Give those about the component that runs the least of the file, of all that run the line: others are made of it.

    What takes much longer to ask says little more. But where every component is served alike none is nearer.
    """
    lines: dict[str, set[int]] = {}
    for a in asked:
        if a.kind != "further":
            lines.setdefault(a.component, set()).update(a.lines)
    nearest = min(lines, key=lambda component: len(lines[component]), default=None)
    return [a for a in asked if every or a.component == nearest]


def _try(sender: Connection, file: File, code: str, asked: list[Asked], near: list[Asked]) -> None:
    _quietly()
    seconds = int(CONFIG["trials"]["seconds"] + 4 * sum(a.seconds for a in asked))  # then a trial is called endless
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    try:
        put_in_place(importlib.import_module(file.module), code)
    except Exception as broken:
        sender.send(f"import: {broken}")
        return
    if file.tests:
        tests = [a.about for a in asked]
        by = first_test_to_notice(tests) if tests else None
        sender.send(by and f"tests: {by}")
        return
    sender.send(next(_rounds(asked, near), None))


def _rounds(asked: list[Asked], near: list[Asked]) -> Iterator[str]:
    """Say who notices: a property by few examples, or by more one that is near, its twin, or one of a further stem."""
    few = CONFIG["trials"]["few"]
    for kind, among, subject, most in (
        ("property", asked, numpy_half(), few),
        ("property", near, numpy_half(), None),
        ("twin", near, torch_half(), None),
        ("further", asked, numpy_half(), None),
    ):
        for a in among:
            if a.kind == kind and first_to_notice([a.about], subject, most or a.examples):
                yield a.name


def _quietly() -> None:
    warnings.simplefilter("ignore")
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (for the life of this process)


@dataclass(frozen=True)
class Survivor:
    """A mutant that nobody noticed."""

    file: str
    function: str
    was: str
    becomes: str
    line: int = field(default=0, compare=False)
    reason: str = field(default="", compare=False)

    @classmethod
    def of(cls, file: str, spec: MutationSpec, diff: str) -> "Survivor":
        """Read the diff of one line."""
        was, becomes = (
            " ".join(line[2:].strip() for line in diff.splitlines() if line[:2] == sign) for sign in ("- ", "+ ")
        )
        return cls(file, spec.definition_name or "", was, becomes, spec.start_pos[0])


def report(files: list[File]) -> int:
    """Print counts and survivors; say whether each has its reason."""
    listed = tomllib.loads((HERE / "survivors.toml").read_text()).get("survivor", [])
    accepted = {s: s.reason for s in (Survivor(**row) for row in listed)}
    found: list[Survivor] = []
    together: Counter[str] = Counter()
    print(f"{'file':<16}{'mutants':>8}{'property':>9}{'twin':>6}{'tests':>6}{'other':>6}{'survived':>9}{'untried':>8}")
    for file in files:
        counted, survivors = file.counts()
        found += survivors
        together += counted
        _print_counts(file.path.name, counted)
    _print_counts("together", together)
    complete = not together["untried"]
    for s in sorted(set(found), key=lambda s: (s.file, s.line)):
        print(f"\n{s.file}:{s.line} {s.function}\n- {s.was}\n+ {s.becomes}\n  {accepted.get(s) or 'NO REASON GIVEN'}")
    names = {file.path.name for file in files}
    in_vain = [s for s in accepted if s.file in names and s not in set(found)] if complete else []
    for s in in_vain:
        print(f"\nA reason for what does not survive: {s.file} {s.function}\n- {s.was}\n+ {s.becomes}")
    without = [s for s in set(found) if not accepted.get(s)]
    print(f"\n{len(without)} survivors without a reason, {len(in_vain)} reasons without a survivor"
          f"{'' if complete else '; not all mutants tried yet'}")  # fmt: skip
    return int(bool(without or in_vain or not complete))


def _print_counts(name: str, counted: Counter[str]) -> None:
    by_property, twin, tests, survived, untried = known = [
        counted[kind] for kind in ("property", "twin", "tests", "survived", "untried")
    ]
    total = sum(counted.values())
    print(f"{name:<16}{total:>8}{by_property:>9}{twin:>6}{tests:>6}{total - sum(known):>6}{survived:>9}{untried:>8}")


if __name__ == "__main__":
    raise SystemExit(main())
