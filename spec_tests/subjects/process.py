"""A program in any language as a subject: one line of JSON for each call, on its standard input and output.

docs/en/check/process-subjects.md says what the lines hold, and process.schema.json beside this file in what form.

The program runs in a process group of its own, whose leader waits for our end of a pipe to close: however we end, the
program and all that it has started end with us.
"""

import inspect
import itertools
import json
import math
import os
import selectors
import shlex
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from reference import SPEC_VERSION
from reference.components import COMPONENTS
from reference.config import ModelConfig, to_json
from spec_tests.judge import Mismatch
from spec_tests.subjects.contract import is_gradient, signature

HELLO_LIMIT = 30.0
"""Seconds that a program may take to answer its first line."""

LONGEST_LINE = 32 * 2**20
"""A reply may have so many bytes; an array has no more numbers than its line."""

GIVING_UP_AFTER = 10
"""A component that breaks the program so often, and has never answered, is not asked again."""

LOOK_UP_EVERY = 0.1
"""Seconds after which a program that we wait for is asked whether it is still there."""

KEPT_WORDS = 2000
"""So many bytes of what a program printed last are kept, for the message that it could not be started."""

DTYPES = ("bool", "int32", "int64", "bfloat16", "float16", "float32", "float64")
"""What the arrays of a reply may hold; NumPy has bfloat16 from ml_dtypes."""

SPELT = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Numbers that JSON has no form for."""


class CannotStart(Exception):
    """The program does not start, or does not say hello; the message says why in one line."""


class ProgramFailed(Mismatch):
    """The program crashed or broke the protocol, which is no answer and no refusal either."""

    kind = "crash"


class SubjectError(Exception):
    """What the program answered with `error`."""


class Process:
    """A running program as a namespace of the functions that it says it offers.

    A program that crashes or says what is no reply fails with ProgramFailed, and is started afresh for the next call.
    Raises CannotStart.
    """

    def __init__(self, command: str) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as problem:
            raise CannotStart(f"the command cannot be split into words: {problem}") from problem
        if not self._words:
            raise CannotStart("the command is empty; give a program and its arguments")
        self._ids = itertools.count(1)
        self._broken: dict[str, int] = {}  # how often each component that has never answered broke the program
        self._answered: set[str] = set()
        try:
            self._hello = self._start()
        except ProgramFailed as failed:
            raise CannotStart(failed.what) from failed
        self.dtype = self._hello["dtype"]
        for name in self._hello["components"]:
            setattr(self, name, self._function(name, self._hello["options"].get(name)))

    def close(self) -> None:
        """End the program."""
        self._end()

    def _function(self, name: str, options: Iterable[str] | None) -> Callable[..., Any]:
        """Make the function of a component; it takes those of the contract's options that the program says it knows."""
        whole = signature(name)

        def ask(*args: Any, **given: Any) -> Any:
            return self._ask(name, whole.bind(*args, **given).arguments)

        known = [
            parameter
            for parameter in whole.parameters.values()
            if options is None or parameter.default is inspect.Parameter.empty or parameter.name in options
        ]
        ask.__name__, ask.__signature__ = name, whole.replace(parameters=known)
        return ask

    def _ask(self, name: str, arguments: Mapping[str, Any]) -> Any:
        if name not in self._answered and self._broken.get(name, 0) >= GIVING_UP_AFTER:
            raise ProgramFailed(f"{name} is not asked again: it broke the program {self._broken[name]} times")
        try:
            if not self._end.alive and self._start() != self._hello:
                self._end()
                raise ProgramFailed("the program says another hello than when it was first started")
            reply = self._exchange({"call": name, "arguments": encode(arguments)})
            answer = _answer(reply)
        except ProgramFailed as failed:
            self._end()
            self._broken[name] = self._broken.get(name, 0) + 1
            raise ProgramFailed(f"{name}: {failed.what}", got=failed.got) from None
        self._answered.add(name)
        return answer

    def _start(self) -> dict[str, Any]:
        """Start the program and say hello; give what it answers, with nothing left out. Raises ProgramFailed."""
        try:
            program = self._program = _Program(self._words)
        except OSError as problem:
            raise ProgramFailed(f"{self._words[0]} cannot be started: {problem.strerror}") from None
        self._end = weakref.finalize(self, program.end)
        try:
            return _hello(self._exchange({"call": "hello", "spec_version": SPEC_VERSION}, limit=HELLO_LIMIT))
        except ProgramFailed as failed:
            self._end()
            said = " ".join(program.last_words().split())[-300:]
            raise ProgramFailed(failed.what + (f"; it said: {said}" if said else ""), got=failed.got) from None

    def _exchange(self, request: dict[str, Any], limit: float | None = None) -> dict[str, Any]:
        """Send a request and give the reply to it. Raises ProgramFailed."""
        request = {"id": next(self._ids), **request}
        try:
            line = self._program.exchange(json.dumps(request, allow_nan=False).encode() + b"\n", limit)
        except BaseException:  # Ctrl-C too: a reply that comes later would be taken for that to the next request
            self._end()
            raise
        reply = _parse(line)
        if type(reply.get("id")) is not int or reply["id"] != request["id"]:
            raise ProgramFailed(f"the program answered request {reply.get('id')!r:.40}, and was asked {request['id']}")
        return reply


# ----------------------------------------------------------------------------------------------------- what replies say


def _parse(line: bytes) -> dict[str, Any]:
    def refuse(token: str) -> Any:
        raise ValueError(f"{token} must be spelt as a string")

    try:
        reply = json.loads(line, parse_constant=refuse)
        if not isinstance(reply, dict):
            raise ValueError("it is no object")
    except (ValueError, RecursionError) as problem:
        said = line[:200].decode("utf-8", "replace")
        raise ProgramFailed(
            f"the program wrote a line that is no JSON object ({problem}); what is no reply belongs on stderr", got=said
        ) from None
    return reply


def _hello(reply: dict[str, Any]) -> dict[str, Any]:
    """Check the reply to hello. Raises ProgramFailed."""
    version = reply.get("spec_version")
    if not isinstance(version, str) or version.split(".")[:2] != SPEC_VERSION.split(".")[:2]:
        raise ProgramFailed(
            f"the program speaks specification {version!r:.40}, and this is {SPEC_VERSION}; "
            f"the first two numbers of spec_version must be the same"
        )
    dtype, components, options = reply.get("dtype", "float64"), reply.get("components"), reply.get("options", {})
    if dtype not in ("float32", "float64"):
        raise ProgramFailed(f'dtype must be "float64" or "float32" in the hello, got {dtype!r:.40}')
    if not _are_names(components):
        raise ProgramFailed(f"components must be a list of names in the hello, got {components!r:.80}")
    if unknown := [name for name in components if name not in COMPONENTS and not is_gradient(name)]:
        raise ProgramFailed(f"{unknown[0]!r:.40} is no component; `transformer-spec list` names them all")
    if not isinstance(options, dict) or not all(map(_are_names, options.values())):
        raise ProgramFailed(f"options must hold a list of names for each component, got {options!r:.80}")
    for name, known in options.items():
        of_contract = signature(name).parameters if name in components else ()
        if unknown := [name, *known] if name not in components else [o for o in known if o not in of_contract]:
            raise ProgramFailed(f"options must be those of components offered, got {unknown[0]!r:.40} in {name!r:.40}")
    return {"dtype": dtype, "components": components, "options": options}


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _answer(reply: dict[str, Any]) -> Any:
    """Give the result that a reply holds, or raise what it says."""
    kinds = [kind for kind in ("result", "error", "unsupported") if kind in reply]
    if len(kinds) != 1:
        raise ProgramFailed(
            f"a reply holds one of result, error and unsupported, and this one {' and '.join(kinds) or 'none of them'}",
            got=str(reply)[:200],
        )
    if kinds == ["result"]:
        return decode(reply["result"])
    raise (SubjectError if kinds == ["error"] else NotImplementedError)(str(reply[kinds[0]])[:2000])


# ------------------------------------------------------------------------------------------------------ values as JSON


def encode(value: Any) -> Any:
    """Give the JSON form of an argument: an array as shape and data, a tree or a config as an object."""
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.name, "shape": list(value.shape), "data": _numbers(value)}
    if isinstance(value, Mapping):
        return {name: encode(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [encode(part) for part in value]
    if isinstance(value, ModelConfig):
        return encode(to_json(value))
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return np.dtype(value).name
    if isinstance(value, np.generic):
        return encode(value.item())
    return _spelt(value) if isinstance(value, float) else value


def _numbers(array: np.ndarray) -> list[Any]:
    numbers = array.ravel().tolist()
    finite = array.dtype.kind in "biu" or np.isfinite(array).all()
    return numbers if finite else [_spelt(number) for number in numbers]


def _spelt(number: float) -> float | str:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def decode(value: Any) -> Any:
    """Read a result: an array, a number, None, or a list or tree of such. Raises ProgramFailed."""
    if isinstance(value, dict):
        return _decode_array(value) if "data" in value else {name: decode(part) for name, part in value.items()}
    if isinstance(value, list):
        return [decode(part) for part in value]
    if isinstance(value, str):
        if value not in SPELT:
            raise ProgramFailed(f"{value!r:.40} is no number; those spelt as strings are {', '.join(SPELT)}")
        return SPELT[value]
    return value


def _decode_array(value: dict[str, Any]) -> np.ndarray:
    dtype, shape, data = (value.get(name) for name in ("dtype", "shape", "data"))
    if dtype not in DTYPES:
        raise ProgramFailed(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r:.40}")
    if not (isinstance(shape, list) and all(type(size) is int and 0 <= size <= LONGEST_LINE for size in shape)):
        raise ProgramFailed(f"shape must be a list of sizes, got {shape!r:.80}")
    if not isinstance(data, list):
        raise ProgramFailed(f"data must be a flat list of numbers, got {data!r:.80}")
    if math.prod(shape) != len(data):  # before anything is made of that size
        raise ProgramFailed(f"shape {shape!r:.80} has room for {math.prod(shape)} numbers, and data holds {len(data)}")
    kinds = set(map(type, data))
    allowed = {int, float, str} if "float" in dtype else {bool} if dtype == "bool" else {int}
    if str in kinds and str in allowed:
        data = [decode(number) if isinstance(number, str) else number for number in data]
    if not kinds <= allowed:
        wrong = next(number for number in data if type(number) not in allowed)
        raise ProgramFailed(f"{wrong!r:.40} is nothing that an array of {dtype} holds")
    try:
        with np.errstate(over="ignore"):  # a number too large for the dtype is infinite in it
            return np.array(data, np.float64 if "float" in dtype else dtype).astype(dtype).reshape(shape)
    except (TypeError, ValueError, OverflowError) as problem:
        raise ProgramFailed(f"an array of {dtype} cannot be made of shape {shape!r:.80}: {problem}") from None


# ------------------------------------------------------------------------------------------------------ the program


class _Program:
    """A program that runs: its three pipes, its process group, its end. Raises OSError."""

    def __init__(self, words: list[str]) -> None:
        self._guard = subprocess.Popen(  # leads the group, and ends it when its input does: when we are gone
            [sys.executable, "-I", "-S", "-c", "import os; os.read(0, 1); os.killpg(0, 9)"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        self._process: subprocess.Popen | None = None
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                process_group=self._guard.pid,
            )
        except OSError:
            self.end()
            raise
        self._in, self._out, self._err = (
            pipe.fileno() for pipe in (self._process.stdin, self._process.stdout, self._process.stderr)
        )
        self._waiting = selectors.DefaultSelector()
        for fd in (self._in, self._out, self._err):
            os.set_blocking(fd, False)
        self._waiting.register(self._out, selectors.EVENT_READ)
        self._waiting.register(self._err, selectors.EVENT_READ)
        self._unread = bytearray()
        self._said = bytearray()

    def exchange(self, request: bytes, limit: float | None) -> bytes:
        """Write a line and give the next one that the program writes. Raises ProgramFailed."""
        deadline = None if limit is None else time.monotonic() + limit
        rest = self._write(memoryview(request))
        if rest:
            self._waiting.register(self._in, selectors.EVENT_WRITE)
        searched = 0
        while True:
            end = self._unread.find(b"\n", searched)
            if end >= 0 and not rest:
                line = bytes(self._unread[:end])
                del self._unread[: end + 1]
                return line
            searched = len(self._unread) if end < 0 else end
            if len(self._unread) > LONGEST_LINE:
                raise ProgramFailed(f"the program wrote a line of more than {LONGEST_LINE:,} bytes")
            left = math.inf if deadline is None else deadline - time.monotonic()
            ended = self._process.poll() is not None  # asked first, so that nothing written before the end is missed
            ready = self._waiting.select(0 if ended else min(left, LOOK_UP_EVERY))
            if not ready and ended:  # a child of it may hold its output open
                raise ProgramFailed(self._how_it_ended())
            if not ready and left <= 0:
                raise ProgramFailed(f"the program did not answer within {limit:g} s")
            for key, _ in ready:
                if key.fd == self._in:
                    rest = self._write(rest)
                    if not rest:
                        self._waiting.unregister(self._in)
                elif key.fd == self._err:
                    if not self._listen():
                        self._waiting.unregister(self._err)
                elif data := os.read(self._out, 1 << 20):
                    self._unread += data
                else:
                    raise ProgramFailed(self._how_it_ended())

    def _write(self, data: memoryview) -> memoryview:
        """Write as much as the pipe takes; give the rest."""
        try:
            while data:
                data = data[os.write(self._in, data) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            raise ProgramFailed(self._how_it_ended()) from None
        return data

    def _listen(self) -> bool:
        """Pass on what there is on its standard error; say whether there may be more."""
        try:
            while data := os.read(self._err, 1 << 16):
                self._said += data
                del self._said[:-KEPT_WORDS]
                with suppress(OSError):
                    os.write(2, data)
        except BlockingIOError:
            return True
        return False

    def last_words(self) -> str:
        """Give the end of what it wrote to its standard error."""
        return self._said.decode("utf-8", "replace")

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            code = None
        self._listen()
        if code is None:
            return "the program closed its input or output"
        if code >= 0:
            return f"the program ended (exit code {code})"
        try:
            return f"the program crashed ({signal.Signals(-code).name})"
        except ValueError:
            return f"the program crashed (signal {-code})"

    def end(self) -> None:
        """End it, with all that it has started in its group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._guard.pid, signal.SIGKILL)
        for process in filter(None, (self._guard, self._process)):
            process.wait()
            for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
                with suppress(OSError):
                    pipe.close()
        if self._process is not None:
            self._waiting.close()
