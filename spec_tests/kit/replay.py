"""Make the calls of recorded failures again, exactly those, and say of each whether it still fails.

A property draws its own inputs and cannot be handed others, so here the calls are judged: a failure is gone when every
call is refused where the reference refuses it, and else gives the reference's answer within rounding. A failure about
manners (the same call twice, the dtype, arguments left alone) is judged by these.
"""

import json
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

import reference.numpy
from reference.parameters import leaves
from spec_tests import bounds
from spec_tests.judge import Mismatch, SubjectRaised, Unsupported
from spec_tests.kit.draws import Raised, coarsest, difference, outcome, writes_into_arguments
from spec_tests.kit.report import plain
from spec_tests.kit.runner import TIME_LIMIT, CannotRun, follow_up
from spec_tests.kit.wire import decode_call
from spec_tests.subjects.contract import Call, arrays_of
from spec_tests.subjects.subject import Subject

READABLE = (2, 3)
"""Versions of the report that hold the calls of failures in a form that is understood here."""


def replay(subject: Subject, component: str, *, property_id: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    """Make these calls of one failure; `fails`, and `what` is wrong or compared."""
    for number, data in enumerate(calls, 1):
        call = decode_call(data)
        try:
            what = _wrong(subject, call, property_id.split(".")[1])
        except Unsupported as lacking:
            return {"fails": False, "what": f"unsupported now: {lacking}"}
        if what:
            where = f"call {number} of {len(calls)}: " if len(calls) > 1 else ""
            return {"fails": True, "what": f"{where}{what}"}
    return {"fails": False, "what": f"{len(calls)} call{'s' * (len(calls) > 1)} made again, as they should be now"}


def _wrong(subject: Subject, call: Call, name: str) -> str:
    """Say what is wrong with the answer to one call; nothing if it is right. `name` is that of the property."""
    right = outcome(getattr(reference.numpy, call.component), call)
    if isinstance(right, Raised):
        try:
            with subject.expecting_an_error():
                subject.call(call.component, *call.args, **call.options)
        except SubjectRaised:
            return ""
        return f"{call.component} accepts bad input ({right.error.splitlines()[0]})"
    should = right[""] if list(right) == [""] else right
    try:
        result = subject.call(call.component, *call.args, **call.options)
        if "arguments_as_they_were" in name or "are_left_as_they_were" in name:
            return f"{call.component} writes into its arguments" if writes_into_arguments(subject, call) else ""
        got = arrays_of(result)
        if "dtype_of_the_inputs" in name:
            return _foreign(call, got)
        bounds.agree(call, result, should, eps=max(subject.eps, coarsest(call)))
        if "twice" in name:
            again = arrays_of(subject.call(call.component, *call.args, **call.options))
            if any(difference(got[path], again[path]).max(initial=0) > 0 for path in got):
                return f"{call.component} gives another result the second time"
    except (Mismatch, AssertionError) as problem:
        return getattr(problem, "what", str(problem))
    return ""


def _foreign(call: Call, got: Mapping[str, np.ndarray]) -> str:
    """Say which dtype comes back that was not given."""
    given = {a.dtype for value in (*call.args, *call.options.values()) for _, a in leaves(value) if _floating(a)}
    foreign = [array.dtype for array in got.values() if _floating(array) and array.dtype not in given]
    return f"{call.component} returns {foreign[0]} for {', '.join(map(str, given))}" if foreign and given else ""


def _floating(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind == "f"


# ----------------------------------------------------------------------------------------------- the command


def replay_report(
    subject: str, file: Path, ids: Iterable[str] = (), *, time_limit: float = TIME_LIMIT
) -> list[tuple[str, bool, str]]:
    """Replay the failures of a JSON report, those whose id matches one of `ids` if there are any.

    Gives the id of each, whether it still fails, and what was seen. Raises CannotRun.
    """
    failures = [result for result in _failures(file) if not ids or any(fnmatchcase(result["id"], glob) for glob in ids)]
    if not failures:
        raise CannotRun(f"{file}: no failure with calls to replay" + (f" matches {', '.join(ids)}" if ids else ""))
    steps = [
        {"step": "replay", "component": r["component"], "property_id": r["id"], "calls": r["calls"]} for r in failures
    ]
    found: list[dict[str, Any]] = []
    follow_up(subject, steps, found.append, time_limit=time_limit)
    seen = [event["data"] or {"fails": True, "what": event["problem"]} for event in found]
    return [(result["id"], data["fails"], data["what"]) for result, data in zip(failures, seen, strict=True)]


def _failures(file: Path) -> list[dict[str, Any]]:
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
        version, results = report["report_version"], report["results"]
        failures = [result for result in results if result["verdict"] == "failed" and result.get("calls")]
    except OSError as problem:
        raise CannotRun(f"{file}: {problem.strerror}; write a report with check --json {file}") from problem
    except (ValueError, KeyError, TypeError) as problem:
        raise CannotRun(f"{file}: not a JSON report of this kit ({type(problem).__name__}: {problem})") from problem
    if version not in READABLE:
        raise CannotRun(f"{file}: a report of version {version}; {' and '.join(map(str, READABLE))} can be replayed")
    return failures


def told(replayed: list[tuple[str, bool, str]]) -> str:
    """Say it line by line."""
    lines = [f"{'FAILS ' if fails else 'PASSES'} {name}: {plain(what, 300)}" for name, fails, what in replayed]
    return "\n".join([*lines, f"\n{sum(fails for _, fails, _ in replayed)} of {len(replayed)} still fail"])
