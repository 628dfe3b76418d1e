"""Check a subject: a child process runs its code, the parent watches, ends what hangs, and goes on with the rest."""

import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec_tests.kit import xfails as xfail_files
from spec_tests.kit.report import Report, Result
from spec_tests.kit.worker import (
    EXAMPLES,
    NARROWER,
    Event,
    introduction,
    plan,
    precision_step,
    run_property,
    run_step,
    shares,
)

if TYPE_CHECKING:
    from spec_tests.subjects.subject import Subject

THOROUGH = 1000
TIME_LIMIT = 20.0
"""Seconds that one call of the subject may take."""

IMPORT_LIMIT = 120.0
PATIENCE = 60.0
"""Seconds that importing the subject, and a property between two calls, may take."""

GIVING_UP_AFTER = 3
"""A component that hangs or crashes so often is not tried any further."""

STEP_LIMIT = 5.0
"""Seconds that one call may take in what follows the verdicts, where nothing is lost but a diagnosis."""

KEPT_OUTPUT = 4000

WORKERS = min(2, os.cpu_count() or 1)
ALONE = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""One thread in each worker unless the user says otherwise: the inputs are small, and two pools would fight."""


class CannotRun(Exception):
    """There is no report to give; the message says why in one line."""


def check(
    subject: Any,
    components: Iterable[str] | None = None,
    *,
    properties: Iterable[str] = (),
    max_examples: int | None = None,
    seed: int | None = None,
    time_limit: float = TIME_LIMIT,
    progress: Callable[[Event], None] = lambda event: None,
) -> Report:
    """Check a subject against the specification and give the report: `.passed`, `.failures`, `str(report)`.

    `subject` is what `transformer-spec check` takes (a file, a dotted module, `"torch_nn"`, or a program as
    `"command:./my_program"`), which runs in a child process that a hang or a crash cannot outlive; or any namespace of
    functions, which runs in this process, so that its hangs are yours. `components` limits what is checked, and so does
    `properties`, globs of ids. `max_examples` are drawn for each property; 12 unless given, and fewer for whole models.
    A component that failed is then compared with known mistakes (`.diagnoses`). Raises CannotRun where there is
    nothing to report.
    """
    components = known_components(components)
    if max_examples is not None and max_examples < 1:
        raise CannotRun(f"max_examples must be at least 1, got {max_examples}")
    seed = secrets.randbits(32) if seed is None else seed
    collector = _Collector(seed=seed, max_examples=max_examples, components=components, ids=list(properties))

    def take(event: Event) -> None:
        collector.take(event)
        progress(event)

    if isinstance(subject, str | Path):
        _run_in_child(str(subject), collector, take, time_limit)
        with suppress(CannotRun):  # that it could be loaded once is enough for a report
            for steps in (collector.precision_steps, collector.diagnosis_steps):
                follow_up(str(subject), steps(), take, time_limit=min(time_limit, STEP_LIMIT))
    else:
        checked = _run_here(subject, collector, take)
        for steps in (collector.precision_steps, collector.diagnosis_steps):
            for step in steps():
                take(run_step(checked, step))
    return collector.report()


def known_components(components: Iterable[str] | None) -> list[str] | None:
    """Give the names, of which each must be a component's; None means all. Raises CannotRun."""
    if components is None:
        return None
    from difflib import get_close_matches

    from reference.components import COMPONENTS

    names = [components] if isinstance(components, str) else list(components)
    for name in names:
        if name not in COMPONENTS:
            near = get_close_matches(name, COMPONENTS, n=1)
            hint = f"did you mean {near[0]}?" if near else "`transformer-spec list` names them all"
            raise CannotRun(f"{name}: no such component; {hint}")
    return names


# ----------------------------------------------------------------------------------------------- events to a report


@dataclass
class _Collector:
    """Folds the events of one check, of however many processes, into a report."""

    seed: int
    max_examples: int | None
    components: list[str] | None
    ids: list[str]
    subject: Event = field(default_factory=dict)
    planned: list[Event] | None = None
    not_offered: list[str] = field(default_factory=list)
    xfails: tuple[xfail_files.Xfail, ...] = ()
    results: list[Result] = field(default_factory=list)
    found: dict[str, list[Event]] = field(default_factory=dict)  # what the steps after the verdicts gave

    def take(self, event: Event) -> None:
        """Note one event. Raises CannotRun where it says that there is nothing to run."""
        match event["event"]:
            case "cannot":
                raise CannotRun(event["message"])
            case "loaded":
                self.subject = event
            case "plan":
                self._plan(event)
            case "verdict":
                self.results.append(self._result(event))
            case "found":
                self.found.setdefault(event["step"], []).append(event)
                if event["step"] == "precision" and event["data"]:
                    self._excuse(event["data"])

    def _plan(self, event: Event) -> None:
        self.planned, self.not_offered = event["properties"], event["not_offered"]
        file = Path(self.subject["xfails_file"]) if self.subject["xfails_file"] else None
        try:
            self.xfails = xfail_files.read(file)
            xfail_files.check_known(self.xfails, event["known"], file)
        except xfail_files.BadXfails as problem:
            raise CannotRun(str(problem)) from problem
        if not self.planned:
            wanted = ", ".join(self.components or ["any component"])
            none = f"no property matches {', '.join(self.ids)}" if self.ids else f"it does not offer {wanted}"
            raise CannotRun(f"{self.subject['name']}: nothing to check: {none}")

    def _result(self, event: Event) -> Result:
        from spec_tests.kit.reproduction import reproduction

        stated = next(p for p in self.planned or () if p["id"] == event["id"])
        names = ("verdict", "what", "kind", "got", "should", "output", "seconds")
        result = Result(
            id=event["id"],
            component=stated["component"],
            sentence=stated["sentence"],
            gradient=stated["gradient"],
            calls=tuple(event.get("calls", ())),
            **{name: event[name] for name in names if event.get(name) is not None},
        )
        if result.verdict == "failed":
            code = reproduction(
                list(result.calls),
                import_code=self.subject["import_code"],
                manners=self.subject["manners"],
                declared=self.subject["conventions"],
                dtype=self.subject["dtype"],
                got=result.got,
                should=result.should,
            )
            result = replace(result, reproduction=code)
        xfail = xfail_files.expected(self.xfails, result.id, self.subject["dtype"])
        changed = {"failed": "xfailed", "passed": "xpassed"}.get(result.verdict)
        if xfail and changed:
            what = result.what or "it passes"
            result = replace(result, verdict=changed, reason=xfail.reason, link=xfail.link, what=what)
        return result

    def remaining(self, ids: Iterable[str]) -> list[str]:
        """Name those properties that have no verdict yet."""
        done = {result.id for result in self.results}
        return [prop_id for prop_id in ids if prop_id not in done]

    def _excuse(self, judged: Event) -> None:
        """Let pass what fails in the dtype that a component is given, and is right in the one that it computes in."""
        for place, result in enumerate(self.results):
            if result.id in judged["right_in_its_dtype"]:
                what = f"right in {judged['measured']['computes_in']}, which it computes in"
                self.results[place] = Result(
                    id=result.id, component=result.component, sentence=result.sentence, verdict="passed",
                    gradient=result.gradient, what=what, seconds=result.seconds,
                )  # fmt: skip

    def precision_steps(self) -> list[Event]:
        """Say whose precision is still to be measured, and what is to be judged again in the dtype that it computes in.

        Nothing where only some properties are asked for.
        """
        components = [] if self.ids else dict.fromkeys(p["component"] for p in self.planned or ())
        gave_up = {result.component for result in self.results if result.kind in ("hang", "crash")}
        done = {found["component"] for found in self.found.get("precision", ())}
        inside = self._inside()
        job = {"max_examples": self.max_examples, "seed": self.seed}
        steps = []
        for component in (c for c in components if c not in gave_up):
            failed = [r.id for r in self.results if r.component == component and r.verdict == "failed"]
            if component not in done or (component in inside and failed):
                steps.append(precision_step(component, failed, job))
        return steps

    def _inside(self) -> dict[str, str]:
        """Give the coarser dtypes that components compute in inside, of those that they can be given."""
        return {m["component"]: m["computes_in"] for m in self._measured() if m["computes_in"] in NARROWER}

    def diagnosis_steps(self) -> list[Event]:
        """Say what is to be done after that: a diagnosis of each component that failed and still answers."""
        failed: dict[str, list[Result]] = {}
        for result in self.results:
            if result.verdict == "failed":
                failed.setdefault(result.component, []).append(result)
        inside = self._inside()
        return [
            {
                "step": "diagnosis",
                "component": component,
                "calls": _calls_of([result for result in results if result.kind != "crash"]),
                "gradient": any(result.gradient for result in results),
                "dtype": inside.get(component, self.subject["dtype"]),
                "seed": self.seed,
            }
            for component, results in failed.items()
            if "hang" not in (kinds := {result.kind for result in results}) and kinds != {"crash"}
        ]

    def _measured(self) -> tuple[dict[str, Any], ...]:
        """Give the precision of each component that has one."""
        judged = [found["data"] for found in self.found.get("precision", ()) if found["data"]]
        return tuple({data["measured"]["component"]: data["measured"] for data in judged if data["measured"]}.values())

    def report(self) -> Report:
        """Give the report, in the manifest's order of components."""
        from reference.components import COMPONENTS

        components = list(COMPONENTS)
        places = {p["id"]: (components.index(p["component"]), n) for n, p in enumerate(self.planned or ())}
        return Report(
            subject=self.subject["name"],
            dtype=self.subject["dtype"],
            seed=self.seed,
            max_examples=EXAMPLES if self.max_examples is None else self.max_examples,
            results=tuple(sorted(self.results, key=lambda result: places[result.id])),
            not_offered=tuple(self.not_offered),
            conventions=self.subject["conventions"],
            precision=self._measured(),
            diagnoses=tuple(
                found["data"] or {"component": found["component"], "findings": [], "problem": found.get("problem", "")}
                for found in sorted(self.found.get("diagnosis", ()), key=lambda f: components.index(f["component"]))
                if found["data"] or found.get("problem")
            ),
        )


def _calls_of(failures: list[Result], most: int = 24) -> list[dict[str, Any]]:
    """Give the calls of these failures, the last one of each first."""
    turns = zip_longest(*(reversed(failure.calls) for failure in failures))
    return list(islice((call for turn in turns for call in turn if call is not None), most))


def _run_here(wanted: Any, collector: _Collector, take: Callable[[Event], None]) -> "Subject":
    from spec_tests.spec import all_properties
    from spec_tests.subjects.loading import CannotLoad, load

    try:
        loaded = load(wanted)
    except CannotLoad as problem:
        raise CannotRun(str(problem)) from problem
    subject = loaded.subject
    take(introduction(loaded))
    take(plan(loaded, all_properties(), collector.components, collector.ids))
    by_id = {prop.id: prop for prop in all_properties()}
    for prop_id in [p["id"] for p in collector.planned or ()]:
        take({"event": "start", "id": prop_id})
        take(run_property(by_id[prop_id], subject, max_examples=collector.max_examples, seed=collector.seed))
    return subject


# ----------------------------------------------------------------------------------------------- the child process


def _run_in_child(wanted: str, collector: _Collector, take: Callable[[Event], None], time_limit: float) -> None:
    """Run a worker or two, each of which is replaced by another one for the rest whenever it hangs or dies."""
    watch = _Watch(wanted, collector, take, time_limit)
    with ThreadPoolExecutor(WORKERS) as pool:
        pending = {pool.submit(watch.run, None, lambda ids: pending.add(pool.submit(watch.run, ids)))}
        try:
            while pending:
                done, _ = wait(list(pending), return_when=FIRST_COMPLETED)
                for future in done:
                    pending.discard(future)
                    future.result()
        finally:
            watch.stop.set()


def follow_up(wanted: str, steps: list[Event], take: Callable[[Event], None], *, time_limit: float) -> None:
    """Do what follows the verdicts in one more process; what hangs or dies there loses its own step only.

    Raises CannotRun where the subject cannot be loaded.
    """
    while steps:
        job = {
            "subject": wanted, "components": None, "properties": [], "ids": [], "workers": 1, "max_examples": None,
            "seed": 0, "steps": steps, "nonce": secrets.token_hex(8),
        }  # fmt: skip
        ended, done = None, 0
        with _Child(job, time_limit, threading.Event()) as child:
            for event in child.events():
                match event["event"]:
                    case "ended":
                        ended = event
                    case "found":
                        take(event)
                        done += 1
                    case "cannot":
                        raise CannotRun(event["message"])
        if ended is None:
            return
        if ended["current"] is None and not done:
            raise CannotRun(f"{wanted}: {ended['stage']} {ended['how']}")
        lost = {"event": "found", "data": None, "problem": f"the subject {ended['how']}", "call": ended["call"]}
        if ended["current"] is not None:
            take({**lost, "step": steps[done]["step"], "component": steps[done]["component"]})
            done += 1
        steps = steps[done:]


class _Watch:
    """What the threads share that each watch one worker."""

    def __init__(self, wanted: str, collector: _Collector, take: Callable[[Event], None], time_limit: float) -> None:
        self.wanted, self.collector, self.time_limit, self._take = wanted, collector, time_limit, take
        self.stop, self.lock = threading.Event(), threading.Lock()
        self.broken: dict[str, int] = {}  # how often each component hung or crashed

    def take(self, event: Event) -> None:
        with self.lock:
            self._take(event)

    def run(self, ids: list[str] | None, start_another: Callable[[list[str]], None] = lambda ids: None) -> None:
        """Run these properties, or as the first worker a share of all there are; `start_another` gets the others."""
        while not self.stop.is_set():
            job = {
                "subject": self.wanted,
                "components": self.collector.components,
                "properties": self.collector.ids,
                "ids": ids,
                "workers": WORKERS,
                "max_examples": self.collector.max_examples,
                "seed": self.collector.seed,
                "steps": [],
                "nonce": secrets.token_hex(8),
            }
            ended = None
            with _Child(job, self.time_limit, self.stop) as child:
                for event in child.events():
                    if event["event"] == "ended":
                        ended = event
                    elif event["event"] != "loaded" or ids is None:
                        self.take(event)
                    if event["event"] == "plan":
                        ids, *others = shares([p["id"] for p in event["properties"]], WORKERS)
                        for other in others:
                            start_another(other)
            if ended is None:
                return
            if ended["current"] is None and not ended["verdicts"]:
                said = " ".join(ended["output"].split())[-300:]
                raise CannotRun(
                    f"{self.wanted}: {ended['stage']} {ended['how']}" + (f"; it said: {said}" if said else "")
                )
            if ended["current"] is not None and ended["current"] not in (ids or []):
                return  # the verdicts are all there; what it was measured at is lost
            if ended["current"] is not None:
                self.take(_verdict_of_the_end(ended))
                self._give_up(ended["current"].split(".")[0], ids or [])
            if not (ids := self.collector.remaining(ids or [])):
                return

    def _give_up(self, component: str, ids: list[str]) -> None:
        """Fail the rest of a component that hangs or crashes again and again, rather than wait for each."""
        self.broken[component] = self.broken.get(component, 0) + 1
        if self.broken[component] < GIVING_UP_AFTER:
            return
        what = f"not run: {component} hung or crashed {self.broken[component]} times already"
        for prop_id in self.collector.remaining(ids):
            if prop_id.startswith(f"{component}."):
                self.take({"event": "verdict", "id": prop_id, "verdict": "failed", "kind": "crash", "what": what})


def _verdict_of_the_end(event: Event) -> Event:
    """Turn the end of a worker into the verdict on the property that it was at."""
    call = event["call"]
    what = f"{call['component']} {event['how']}" if event["in_call"] else f"after its calls the process {event['how']}"
    verdict = "failed"
    if event["kind"] == "hang" and not event["in_call"]:
        verdict, what = "error", f"the property itself {event['how']}"
    return {
        "event": "verdict",
        "id": event["current"],
        "verdict": verdict,
        "kind": event["kind"],
        "what": what,
        "calls": [call] if call else [],
        "output": event["output"],
        "seconds": event["seconds"],
    }


class _Child:
    """One worker process: its private line of events, what it prints, and its end."""

    def __init__(self, job: dict[str, Any], time_limit: float, stop: threading.Event) -> None:
        self.stop, self.time_limit, self.nonce = stop, time_limit, job["nonce"].encode()
        self.events_fd, worker_end = os.pipe()
        self.output_fd, output_end = os.pipe()
        self.process = subprocess.Popen(
            # -P: the folder that we are in must not hide a package that we import; the worker adds it later
            [sys.executable, "-P", "-u", "-m", "spec_tests.kit.worker", str(worker_end)],
            stdin=subprocess.PIPE,
            stdout=output_end,
            stderr=output_end,
            pass_fds=(worker_end,),
            start_new_session=True,
            env={**ALONE, **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, import_path()))},
        )
        os.close(worker_end)
        os.close(output_end)
        for fd in (self.events_fd, self.output_fd):
            os.set_blocking(fd, False)
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        self.process.stdin.flush()  # and left open: when this process ends, the worker's end of it closes
        self.output, self.unread = bytearray(), b""
        self.current: str | None = None
        self.call_line: bytes | None = None
        self.in_call, self.stage, self.verdicts = False, "starting the worker", 0
        self.since = self.started = time.monotonic()

    def __enter__(self) -> "_Child":
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)  # with all that the subject has started
        self.process.stdin.close()
        self.process.wait()
        os.close(self.events_fd)
        os.close(self.output_fd)

    def events(self) -> Iterator[Event]:
        """Give the worker's events; the last is `ended` unless it did all it had to do, or was stopped."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.events_fd, selectors.EVENT_READ)
            selector.register(self.output_fd, selectors.EVENT_READ)
            while not self.stop.is_set():
                limit = self._limit()
                selector.select(timeout=min(max(limit - (time.monotonic() - self.since), 0.01), 0.5))
                if not self._read_output() and self.output_fd in selector.get_map():
                    selector.unregister(self.output_fd)  # the subject closed it: there is nothing more to wait for
                alive = self.process.poll() is None  # asked first, so that nothing written before the end is missed
                closed = False
                for line in self._read_lines():
                    if line is None:
                        closed = True
                        continue
                    event = self._event(line)
                    if event is None:
                        continue
                    if event["event"] == "done":
                        return
                    yield event
                if closed and alive:
                    alive = self._ends_soon()
                if not alive or closed:
                    yield self._ended("crash", self._how_it_died())
                    return
                if time.monotonic() - self.since > limit:
                    yield self._ended("hang", f"did not return within {limit:g} s")
                    return

    def _limit(self) -> float:
        if self.current is None:
            return IMPORT_LIMIT
        return self.time_limit if self.in_call else max(PATIENCE, self.time_limit)

    def _event(self, line: bytes) -> Event | None:
        """Read one line; calls are many, so they are kept as they came and only read if something happens."""
        if not line.startswith(self.nonce):
            return None
        line = line[len(self.nonce) :]
        self.since = time.monotonic()
        if line == b"r":
            self.in_call = False
            return None
        if line.startswith(b'{"event": "call"'):
            self.call_line, self.in_call = line, True
            return None
        event: Event = json.loads(line)
        match event["event"]:
            case "importing":
                self.stage = "importing it"
            case "start":
                self.current, self.call_line, self.in_call, self.started = event["id"], None, False, self.since
                self._read_output()
                self.output.clear()
            case "verdict" | "found":
                self._read_output()
                event["output"] = self._said()
                self.current, self.verdicts = None, self.verdicts + 1
        return event

    def _ended(self, kind: str, how: str) -> Event:
        self._read_output()
        return {
            "event": "ended",
            "kind": kind,
            "how": how,
            "stage": self.stage,
            "current": self.current,
            "verdicts": self.verdicts,
            "in_call": self.in_call,
            "call": json.loads(self.call_line)["call"] if self.call_line else None,
            "output": self._said(),
            "seconds": time.monotonic() - self.started,
        }

    def _how_it_died(self) -> str:
        self._ends_soon()
        code = self.process.poll()
        if code is None:
            return "closed the kit's line"
        if code >= 0:
            return f"ended the process (exit code {code})"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"crashed the process ({name})"

    def _ends_soon(self) -> bool:
        """Wait a moment for the process to be gone; say whether it is still there."""
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            return True
        return False

    def _read_lines(self) -> Iterator[bytes | None]:
        """Give the whole lines that there are to read, and None at the end of the stream."""
        while True:
            try:
                data = os.read(self.events_fd, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                yield None
                return
            *lines, self.unread = (self.unread + data).split(b"\n")
            yield from lines

    def _read_output(self) -> bool:
        """Read what was printed, of which the end is kept; say whether there may be more."""
        while True:
            try:
                data = os.read(self.output_fd, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.output += data
            del self.output[:-KEPT_OUTPUT]
            if (example := self.output.rfind(self.nonce + b"\n")) >= 0:
                del self.output[: example + len(self.nonce) + 1]

    def _said(self) -> str:
        return self.output.decode("utf-8", "replace")


def import_path() -> list[str]:
    """Give what the worker needs on its path to import this very kit."""
    root = str(Path(__file__).resolve().parents[2])
    return [root, os.environ.get("PYTHONPATH", "")]


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn what cannot run into one line and exit code 2."""
    try:
        yield
    except CannotRun as problem:
        from spec_tests.kit.report import plain

        print(f"transformer-spec: {plain(' '.join(str(problem).split()), 1000)}", file=sys.stderr)
        raise SystemExit(2) from None
