"""Run properties on a subject and tell what happens, event by event.

As `python -m spec_tests.kit.worker FD` it is the child process of `runner`: it reads a job (one line of JSON) from its
standard input and writes one line of JSON for each event to the file descriptor FD. Each line begins with the job's
nonce, and what the subject prints goes elsewhere, so that no subject can speak for the kit.
"""

import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
import unittest
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spec_tests.spec import Property
    from spec_tests.subjects.loading import Loaded
    from spec_tests.subjects.subject import Subject

Event = dict[str, Any]

EXAMPLES = 12
COMPOSED = {"transformer_block": 2, "transformer": 3}
"""What holds all other components takes as much longer, so by default so many fewer examples are drawn."""

NARROWER = ("float32", "float16")
"""What a subject of float64 that computes in a coarser dtype inside can be given instead."""

SHRINKING_SECONDS = 5
"""So long a failing input may be made smaller; Hypothesis alone would take up to five minutes."""


def introduction(loaded: "Loaded") -> Event:
    """Say who the subject is."""
    subject = loaded.subject
    return {
        "event": "loaded",
        "name": subject.name,
        "dtype": subject.dtype.name,
        "manners": subject.manners(),
        "conventions": subject.conventions,
        "import_code": loaded.import_code,
        "xfails_file": str(loaded.xfails_file) if loaded.xfails_file else None,
        "offers": loaded.offers,
    }


def plan(loaded: "Loaded", properties: Iterable["Property"], components: list[str] | None, ids: list[str]) -> Event:
    """Say what there is to run: the properties of what the subject offers, among `components` if any are named.

    `ids` are globs, of which an id must match one, if there are any.
    """
    from reference.components import COMPONENTS

    wanted = set(COMPONENTS if components is None else components)
    offered = set(loaded.offers)
    known = list(properties)
    asked = [p for p in known if p.component in wanted and (not ids or any(fnmatchcase(p.id, glob) for glob in ids))]
    return {
        "event": "plan",
        "known": [p.id for p in known],
        "properties": [
            {"id": p.id, "component": p.component, "sentence": p.sentence, "gradient": p.gradient}
            for p in asked
            if p.is_asked_of(loaded.subject)
        ],
        "not_offered": [name for name in COMPONENTS if name in wanted - offered],
    }


def examples_of(component: str, max_examples: int | None) -> int:
    """Give the number of examples to draw: what is asked for, or the default of the component."""
    return EXAMPLES // COMPOSED.get(component, 1) if max_examples is None else max_examples


def shares(ids: list[str], workers: int) -> list[list[str]]:
    """Deal the properties out to the workers: to one alone if there are few, for a worker takes seconds to start."""
    return [ids[start::workers] for start in range(workers)] if len(ids) >= 6 * workers else [ids]


def run_property(prop: "Property", subject: "Subject", *, max_examples: int | None, seed: int) -> Event:
    """Run one property; its verdict is `passed`, `failed`, `unsupported`, or `error` if the property itself broke."""
    from hypothesis.errors import Flaky, HypothesisException, Unsatisfiable

    from spec_tests.judge import Mismatch, SubjectRaised

    called = 0
    before_call = subject.before_call

    def count(call: Any) -> None:
        nonlocal called
        called += 1
        before_call(call)

    subject.before_call = count
    subject.begin_example()
    started = time.monotonic()
    verdict: Event = {"verdict": "passed"}
    try:
        with hypothesis_settings(prop.function, max_examples=examples_of(prop.component, max_examples), seed=seed):
            prop.run(subject)
        if not called:
            verdict = {"verdict": "error", "what": "no example ran: the subject was never called"}
    except unittest.SkipTest as lacking:
        verdict = {"verdict": "unsupported", "what": str(lacking)}
    except Flaky as flaky:
        inner = next(iter(getattr(flaky, "exceptions", ())), flaky)
        what = f"the same input does not give the same result each time: {inner}"
        verdict = _failure(subject, kind="flaky", what=what, problem=inner)
    except SubjectRaised as problem:
        what = f"{problem.what}{_where(problem.original)}"
        verdict = _failure(subject, kind="raised", what=what, problem=problem)
    except Mismatch as problem:
        kind = getattr(problem, "kind", "mismatch")  # a program of its own may have crashed, see subjects/process.py
        verdict = _failure(subject, kind=kind, what=problem.what, problem=problem)
    except AssertionError as problem:
        verdict = _failure(subject, kind="mismatch", what=str(problem) or "it does not hold", problem=problem)
    except Unsatisfiable:
        verdict = {"verdict": "error", "what": "no example ran: none of the inputs drawn was fit for the property"}
    except KeyboardInterrupt as problem:
        if threading.current_thread() is threading.main_thread() and not _is_worker:
            raise
        verdict = _failure(subject, kind="raised", what="KeyboardInterrupt was raised", problem=problem)
    except (Exception, HypothesisException) as problem:
        frames = "".join(traceback.format_exception(problem)[-4:])
        what = f"the property broke with {type(problem).__name__}: {problem}\n{frames}"
        verdict = {"verdict": "error", "what": what}
    finally:
        subject.before_call = before_call
    return {"event": "verdict", "id": prop.id, **verdict, "calls_made": called, "seconds": time.monotonic() - started}


STEPS = {
    "precision": "spec_tests.kit.precision:judge",
    "diagnosis": "spec_tests.kit.diagnosis:diagnose",
    "replay": "spec_tests.kit.replay:replay",
}
"""What may follow the verdicts: functions of a subject, a component, and whatever else the step names."""


def precision_step(component: str, failed: list[str], job: Event) -> Event:
    """Give the step that measures a component, and puts to it again what it failed if it computes in another dtype."""
    details = {"failed": failed, "max_examples": job["max_examples"], "seed": job["seed"]}
    return {"step": "precision", "component": component, **details}


def run_step(subject: "Subject", step: Event) -> Event:
    """Do one step `{"step": "diagnosis", "component": ..., ...}`; its data is what came out, None where it broke.

    A `dtype` in it is what the subject is given meanwhile.
    """
    import numpy as np

    module, _, name = STEPS[step["step"]].partition(":")
    details = {key: value for key, value in step.items() if key not in ("step", "component", "dtype")}
    found: Event = {"event": "found", "step": step["step"], "component": step["component"], "data": None}
    subject.begin_example()
    given, subject.dtype = subject.dtype, np.dtype(step.get("dtype", subject.dtype))
    try:
        found["data"] = getattr(importlib.import_module(module), name)(subject, step["component"], **details)
    except Exception as problem:
        found["problem"] = f"it broke with {type(problem).__name__}: {problem}{_where(problem)}"
    finally:
        subject.dtype = given
    return found


_is_worker = False


def _failure(subject: "Subject", *, kind: str, what: str, problem: BaseException) -> Event:
    from spec_tests.kit.wire import encode, encode_call

    got, should = (getattr(problem, name, None) for name in ("got", "should"))
    return {
        "verdict": "failed",
        "kind": kind,
        "what": what,
        "got": encode(got),
        "should": encode(should),
        "calls": [encode_call(call) for call in subject.calls],
    }


def _where(error: BaseException) -> str:
    """Give the place in the subject's own file where it raised."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "spec_tests/subjects" not in frame.filename
    ]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


@contextmanager
def hypothesis_settings(function: Callable[..., None], *, max_examples: int, seed: int | None) -> Iterator[None]:
    """Let a property draw this many examples from this seed, and leave its settings as they were.

    A property that states a smaller number of its own, because its examples are slow, keeps it.
    """
    from hypothesis import Verbosity, settings

    if not hasattr(function, "hypothesis"):  # it draws nothing
        yield
        return
    own, own_seed = function._hypothesis_internal_use_settings, function._hypothesis_internal_use_seed
    try:
        function._hypothesis_internal_use_settings = settings(
            fitted_settings(function, own, max_examples=max_examples), verbosity=Verbosity.quiet
        )
        function._hypothesis_internal_use_seed = seed
        yield
    finally:
        function._hypothesis_internal_use_settings = own
        function._hypothesis_internal_use_seed = own_seed


def fitted_settings(function: Callable[..., None], own: Any, *, max_examples: int) -> Any:
    """Give the Hypothesis settings that a property should run with, made from its `own`."""
    from hypothesis import HealthCheck, Phase, settings

    stated = getattr(function, "_hypothesis_internal_settings_applied", False)
    return settings(
        own,
        max_examples=min(own.max_examples, max_examples) if stated else max_examples,
        deadline=None,
        database=None,
        derandomize=False,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],  # explaining a failure takes longer than finding it
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )


# ----------------------------------------------------------------------------------------------- the child process


def main() -> None:
    """Do the job that stands on standard input."""
    global _is_worker
    _is_worker = True
    events = int(sys.argv[1])
    os.set_inheritable(events, False)
    job_input = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the subject has nothing to read
    with os.fdopen(os.dup(job_input)) as lines:
        job = json.loads(lines.readline())
    threading.Thread(target=end_with_parent, args=(job_input,), daemon=True).start()

    nonce = job["nonce"].encode()

    def flush() -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):  # the subject closed it or put another one there
                stream.flush()

    def emit_raw(line: bytes) -> None:
        data = nonce + line + b"\n"
        while data:
            data = data[os.write(events, data) :]

    def emit(event: Event) -> None:
        flush()
        emit_raw(json.dumps(event).encode())

    if job["subject"] == "reference.torch":  # its errors are part of the specification: check its shapes
        os.environ["REFERENCE_SHAPE_CHECKS"] = "1"
    os.environ.setdefault("JAX_ENABLE_X64", "1")  # said before the subject imports JAX, if it does, and makes arrays
    import hypothesis.internal.conjecture.engine

    from spec_tests.kit.wire import encode_call
    from spec_tests.spec import all_properties
    from spec_tests.subjects.loading import CannotLoad, load

    hypothesis.internal.conjecture.engine.MAX_SHRINKING_SECONDS = SHRINKING_SECONDS
    properties = all_properties()
    emit({"event": "importing"})
    try:
        loaded = load(job["subject"])
    except CannotLoad as problem:
        emit({"event": "cannot", "message": str(problem)})
        os._exit(0)
    subject = loaded.subject
    emit(introduction(loaded))
    planned = plan(loaded, properties, job["components"], job["properties"])
    if job["ids"] is None:
        emit(planned)
        ids = shares([p["id"] for p in planned["properties"]], job["workers"])[0]
    else:
        ids = job["ids"]
    subject.before_call = lambda call: emit_raw(json.dumps({"event": "call", "call": encode_call(call)}).encode())
    subject.after_call = lambda: emit_raw(b"r")
    begin_example = subject.begin_example

    def mark_example() -> None:
        """Mark in what is printed where an example begins: a failure shows what its own example printed."""
        begin_example()
        flush()
        with suppress(OSError):
            os.write(1, nonce + b"\n")

    subject.begin_example = mark_example
    by_id = {prop.id: prop for prop in properties}
    for prop_id in ids:
        emit({"event": "start", "id": prop_id})
        emit(run_property(by_id[prop_id], subject, max_examples=job["max_examples"], seed=job["seed"]))
    steps = job["steps"]
    if job["ids"] is None and not job["properties"]:  # while it is here: a process of its own would take seconds
        asked = dict.fromkeys(p["component"] for p in planned["properties"])
        steps = [precision_step(component, [], job) for component in asked]
    for step in steps:
        emit({"event": "start", "id": f"{step['step']} of {step['component']}"})
        emit(run_step(subject, step))
    emit({"event": "done"})
    os._exit(0)  # whatever threads the subject has started


def end_with_parent(job_input: int) -> None:
    """End with the parent, however it ended: its end of the pipe closes."""
    while os.read(job_input, 1024):
        pass
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    main()
