"""`python -m spec_tests.meta.mutation [stem ...]`: mutate `reference.numpy`, and say what nobody notices.

The session stands in `runs/mutation`, one database (of cosmic-ray) for each file as it is: a run that was stopped goes
on, and a file that has changed starts anew. `survivors.toml` says of every accepted survivor why it changes nothing.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

import argparse
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
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from cosmic_ray.work_db import WorkDB
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkItem, WorkResult

import reference.numpy
from spec_tests.meta.mutation.mutants import Mutant, mutants_of
from spec_tests.meta.mutation.trial import (
    comparisons_about,
    first_to_notice,
    numpy_half,
    properties_about,
    put_in_place,
    tests_notice,
    torch_half,
)

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
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    paths = sorted(Path(reference.numpy.__file__).parent.glob("*.py"))
    files = [File(path) for path in paths if not options.stems or path.stem in options.stems]
    for file in files:
        file.run(options.jobs, until)
    return report(files)


class File:
    """One file of the reference, and its session."""

    def __init__(self, path: Path) -> None:
        self.path, self.source = path, path.read_text()
        self.stems = CONFIG["stems"].get(path.stem, [path.stem])
        self.tests = CONFIG["tests"].get(path.stem, [])
        SESSIONS.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(f"{self.source}{CONFIG['operators']}".encode()).hexdigest()[:12]
        self.session = WorkDB(SESSIONS / f"{path.stem}-{digest}.sqlite", WorkDB.Mode.create)
        if not self.session.num_work_items:
            self.session.add_work_items(map(self._item, mutants_of(self.source, CONFIG["operators"])))

    def _item(self, m: Mutant) -> WorkItem:
        spec = MutationSpec(self.path, m.operator, m.occurrence, m.start, m.end, definition_name=m.function)
        return WorkItem.single(uuid.uuid4().hex, spec)

    def run(self, jobs: int, until: float) -> None:
        """Try every mutant that has not been tried, so many at a time."""
        pending = list(self.session.pending_work_items)
        if not pending:
            return
        asked = self._sound()
        noticed: Counter[str] = Counter()
        running: dict[Any, Trial] = {}
        while (pending and time.monotonic() < until) or running:
            while pending and len(running) < jobs and time.monotonic() < until:
                item = pending.pop()
                asked.properties.sort(key=lambda p: -noticed[f"property: {p.id}"])
                trial = Trial(self, item, asked)
                running[trial.process.sentinel] = trial
            for sentinel in wait(list(running)):
                trial = running.pop(sentinel)
                by = trial.end()
                noticed[by or ""] += 1
                outcome = TestOutcome.KILLED if by else TestOutcome.SURVIVED
                result = WorkResult(WorkerOutcome.NORMAL, by, outcome, trial.diff)
                self.session.set_result(trial.item.job_id, result)
                left = len(pending) + len(running)
                print(f"\r{self.path.name}: {left} left  ", end="", file=sys.stderr, flush=True)

    def _sound(self) -> "Asked":
        """Give the properties and comparisons that pass without any change, the quickest first.

        What shape checks refuse is not refused here, where they are off.
        """
        receiver, sender = FORK.Pipe(duplex=False)
        process = FORK.Process(target=_ask_all, args=(sender, self))
        process.start()
        sender.close()
        own, others, seconds, failing = receiver.recv()
        process.join()
        if failing:
            raise RuntimeError(f"{failing} fails without any change")
        properties, comparisons = properties_about(self.stems), comparisons_about(self.stems)
        return Asked([properties[i] for i in own], [comparisons[i] for i in others], 30 + 4 * int(seconds))

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


@dataclass
class Asked:
    """Who is asked about the mutants of a file, and after how many seconds of computing a trial is called endless."""

    properties: list[Any]
    comparisons: list[Any]
    seconds: int


def _ask_all(sender: Connection, file: File) -> None:
    _quietly()
    own, others, failing = [], [], None
    if file.tests:
        failing = tests_notice(file.tests)
    else:
        own = _passing(properties_about(file.stems), numpy_half())
        others = _passing(comparisons_about(file.stems), torch_half())
    sender.send((own, others, time.process_time(), failing))


def _passing(properties: list[Any], subject: Any) -> list[int]:
    """Give the places of those that pass, the quickest first."""
    seconds = {}
    for i, prop in enumerate(properties):
        since = time.process_time()
        if first_to_notice([prop], subject, CONFIG["trials"]["more"]) is None:
            seconds[i] = time.process_time() - since
    return sorted(seconds, key=seconds.get)


class Trial:
    """One mutant in a process of its own."""

    def __init__(self, file: File, item: WorkItem, asked: Asked) -> None:
        spec = item.mutations[0]
        mutant = Mutant(spec.operator_name, spec.occurrence, spec.start_pos, spec.end_pos, spec.definition_name or "")
        code = mutant.code(file.source)
        changed = difflib.ndiff(file.source.splitlines(), code.splitlines())
        self.diff = "\n".join(line for line in changed if line[:2] in ("- ", "+ "))
        self.item = item
        self.receiver, sender = FORK.Pipe(duplex=False)
        self.process = FORK.Process(target=_try, args=(sender, file, code, asked))
        self.process.start()
        sender.close()

    def end(self) -> str | None:
        """Say who noticed the mutant: a property, the twin, or the system that ended it; None if nobody did."""
        self.process.join()  # it may still be about to end: its sentinel is ready a little before it is
        if self.receiver.poll():
            return self.receiver.recv()
        if self.process.exitcode < 0:
            return f"signal: {-self.process.exitcode}"
        raise RuntimeError(f"a trial of this mutant ended without a verdict:\n{self.diff}")


def _try(sender: Connection, file: File, code: str, asked: Asked) -> None:
    _quietly()
    resource.setrlimit(resource.RLIMIT_CPU, (asked.seconds, asked.seconds))
    module = importlib.import_module(f"reference.numpy{'' if file.path.stem == '__init__' else '.' + file.path.stem}")
    try:
        put_in_place(module, code)
    except Exception as broken:
        sender.send(f"import: {broken}")
        return
    if file.tests:
        by = tests_notice(file.tests)
        sender.send(by and f"tests: {by}")
        return
    few, more = CONFIG["trials"]["few"], CONFIG["trials"]["more"]
    by = None
    for kind, properties, subject, examples in (
        ("property", asked.properties, numpy_half, few),
        ("property", asked.properties, numpy_half, more),
        ("twin", asked.comparisons, torch_half, more),
    ):
        if found := first_to_notice(properties, subject(), examples):
            by = f"{kind}: {found}"
            break
    sender.send(by)


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
    complete = True
    print(f"{'file':<16}{'mutants':>8}{'property':>9}{'twin':>6}{'tests':>6}{'other':>6}{'survived':>9}{'untried':>8}")
    for file in files:
        counted, survivors = file.counts()
        found += survivors
        complete &= not counted["untried"]
        known = [counted[kind] for kind in ("property", "twin", "tests", "survived", "untried")]
        total = sum(counted.values())
        by_property, twin, tests, survived, untried = known
        print(f"{file.path.name:<16}{total:>8}{by_property:>9}{twin:>6}{tests:>6}{total - sum(known):>6}"
              f"{survived:>9}{untried:>8}")  # fmt: skip
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


if __name__ == "__main__":
    raise SystemExit(main())
