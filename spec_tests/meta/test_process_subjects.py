"""Programs as subjects: what goes over the line, what a program may do wrong, and that nothing of it stays."""

import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from reference import SPEC_VERSION
from spec_tests import check
from spec_tests.kit import runner
from spec_tests.meta.schema import problems
from spec_tests.subjects import process
from spec_tests.subjects.loading import CannotLoad, load
from spec_tests.subjects.process import Process, ProgramFailed, SubjectError

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "subjects"
PAGE = ROOT / "docs" / "en" / "check" / "process-subjects.md"
SCHEMA = json.loads((ROOT / "spec_tests" / "subjects" / "process.schema.json").read_text())

in_the_repository = pytest.mark.skipif(
    not PAGE.is_file(), reason="only in the repository, not in the installed package"
)

PROGRAM = f"""
import json, os, sys, time

def say(id, **reply):
    print(json.dumps({{"id": id, **reply}}), flush=True)

def hello(id, **other):
    say(id, **{{"spec_version": {SPEC_VERSION!r}, "components": ["relu"], **other}})

def relu(x):
    return {{**x, "data": [max(float(v), 0.0) for v in x["data"]]}}

"""
"""The beginning of every program below, which misbehaves in its own way."""

ANSWERS = """
for line in sys.stdin:
    request = json.loads(line)
    id, call = request["id"], request["call"]
    if call == "hello":
        hello(id)
        continue
    x = request["arguments"]["x"]
    if len(x["data"]) > 3:
        MISBEHAVE
    else:
        say(id, result=relu(x))
"""


@pytest.fixture
def program(tmp_path):
    """Write a program in Python, and give the command that starts it."""

    def write(code, name="program.py"):
        file = tmp_path / name
        file.write_text(PROGRAM + code)
        return shlex.join([sys.executable, "-I", "-S", str(file)])

    return write


@pytest.fixture
def started():
    """Start a program, and end it with the test."""
    running = []

    def start(command):
        running.append(Process(command))
        return running[-1]

    yield start
    for one in running:
        one.close()


@pytest.fixture(autouse=True)
def one_worker(monkeypatch):
    """Let one worker do: a second one takes seconds to start."""
    monkeypatch.setattr(runner, "WORKERS", 1)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Let a program and a kit that wait for each other fail, rather than wait for ever."""
    exchange = process._Program.exchange

    def within_a_minute(self, request, limit):
        return exchange(self, request, 60.0 if limit is None else limit)

    monkeypatch.setattr(process._Program, "exchange", within_a_minute)


def misbehaving(how):
    """Give the program that answers small arrays and does this on larger ones."""
    return ANSWERS.replace("MISBEHAVE", how)


def quick(subject, *properties, **options):
    """Check the properties of these ids with few examples."""
    return check(subject, properties=properties, **{"max_examples": 5, "seed": 7, **options})


def is_gone(pid):
    """Say whether a process has ended, or does within some seconds."""
    for _ in range(200):
        status = Path(f"/proc/{pid}/stat")
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return True  # ended, and waits for init
        time.sleep(0.05)
    return False


# ----------------------------------------------------------------------------------------------- over the line

EVERY_COMPONENT = """
import json, sys
import numpy as np
import reference.numpy
from reference import SPEC_VERSION
from reference.components import COMPONENTS
from reference.config import from_json

SPELT = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}

def read(name, value):
    if isinstance(value, dict) and "data" in value:
        data = [float(v) if isinstance(v, str) else v for v in value["data"]]
        return np.array(data, value["dtype"]).reshape(value["shape"])
    if name == "config":
        return from_json(value)
    if isinstance(value, dict):
        return {part: read(part, of) for part, of in value.items()}
    if isinstance(value, list):
        return [read("", part) for part in value]
    return float(value) if name in ("eps", "rate", "max_norm") else value

def written(value):
    if isinstance(value, np.ndarray):
        data = [SPELT.get(str(v), v) for v in value.ravel().tolist()]
        return {"dtype": value.dtype.name, "shape": list(value.shape), "data": data}
    if isinstance(value, dict):
        return {name: written(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [written(part) for part in value]
    return SPELT.get(str(value), value)

names = [n for c in COMPONENTS.values() for n in (c.name, c.name + "_vjp")[: 1 + c.differentiable]]
for line in sys.stdin:
    request = json.loads(line)
    if request["call"] == "hello":
        reply = {"spec_version": SPEC_VERSION, "components": names}
    else:
        try:
            arguments = {name: read(name, value) for name, value in request["arguments"].items()}
            reply = {"result": written(getattr(reference.numpy, request["call"])(**arguments))}
        except Exception as problem:
            reply = {"error": str(problem)}
    print(json.dumps({"id": request["id"], **reply}), flush=True)
"""
"""All of the reference behind the line."""


def test_all_that_the_contract_has_goes_over_the_line(tmp_path, monkeypatch):
    """Arrays, trees, configs, absent parts and gradients go there and back whole, in lines of the schema's form."""
    lines = []
    exchange = process._Program.exchange

    def recorded(self, request, limit):
        reply = exchange(self, request, limit)
        lines.extend([request, reply])
        return reply

    monkeypatch.setattr(process._Program, "exchange", recorded)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    file = tmp_path / "everything.py"
    file.write_text(EVERY_COMPONENT)
    loaded = load(f"command:{shlex.join([sys.executable, str(file)])}")
    properties = (
        "transformer.agrees*.pre", "transformer_block.gradients_agree*.mask", "causal_mask.agrees*", "sample.agrees*",
        "adamw_step.agrees*", "clip_grad_norm.agrees*", "parameter_count.agrees*.plain", "perplexity.agrees*",
        "multi_head_attention.gradients_agree*.heads_only", "layer_norm.an_eps_below_0_raises",
        "transformer.the_dtype*.pre", "softmax.nan_spoils*", "softmax.a_row_of_minus*",
    )  # fmt: skip
    report = quick(loaded.subject, *properties, max_examples=2)
    loaded.subject.namespace.close()
    assert report.passed, str(report)
    assert {"passed"} == {result.verdict for result in report.results}
    for line in lines:
        assert problems(json.loads(line), SCHEMA) == [], line[:300]
    everything = b"".join(lines).decode()
    for text in ('"NaN"', '"-Infinity"', '"blocks": [', '"error"', '"config": {"vocab"', "null", '"bool"', '"float32"'):
        assert text in everything
    assert problems({"id": 1, "result": {"shape": [1], "data": [1.0]}}, SCHEMA), "it must be able to fail"
    assert problems({"id": 1, "result": "nan"}, SCHEMA), "it must be able to fail"


def test_numbers_arrive_to_the_last_bit(program, started):
    """What is sent comes back the same: least and largest numbers, both zeros, NaN, infinities, no axes, empty axes."""
    mirror = started(program(misbehaving("say(id, result=x)").replace("> 3", ">= 0")))
    special = np.array([5e-324, 1.7976931348623157e308, -0.0, 0.0, math.nan, math.inf, -math.inf, 0.1, 1 / 3])
    for array in (
        special, np.float32(special[3:]), np.array(0.5), np.zeros((2, 0, 3)), np.array([[True], [False]]),
        np.arange(-3, 3), np.array([2**53 + 1, -(2**63)]),
    ):  # fmt: skip
        back = mirror.relu(array)
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        assert back.tobytes() == array.tobytes()


def test_a_program_gets_what_differs_from_the_defaults_by_name(program, started):
    """Arguments go by name, None as null, and an option at its default not at all."""
    code = """
for line in sys.stdin:
    request = json.loads(line)
    if request["call"] == "hello":
        hello(request["id"], components=["layer_norm"])
    else:
        say(request["id"], error=json.dumps(request["arguments"]))
"""
    subject = load(f"command:{program(code)}").subject
    with pytest.raises(Exception, match="raised SubjectError") as sent:
        subject.layer_norm(np.array([0.5]), None, None, eps=1e-5, variant="std_plus_eps")
    subject.namespace.close()
    arguments = json.loads(str(sent.value.original))
    x = {"dtype": "float64", "shape": [1], "data": [0.5]}
    assert arguments == {"x": x, "gamma": None, "beta": None, "variant": "std_plus_eps"}


def test_what_a_program_does_not_offer_is_unsupported(program):
    """An option that its hello does not name is not asked for, and `unsupported` counts as it does for functions."""
    code = """
for line in sys.stdin:
    request = json.loads(line)
    if request["call"] == "hello":
        hello(request["id"], components=["softmax", "gelu"], options={"softmax": []})
    elif request["call"] == "gelu":
        say(request["id"], unsupported="no forms of gelu")
    else:
        say(request["id"], error="asked with " + ", ".join(request["arguments"]))
"""
    loaded = load(f"command:{program(code)}")
    report = quick(loaded.subject, "softmax.agrees*.axis", "gelu.agrees*.tanh")
    loaded.subject.namespace.close()
    assert [r.verdict for r in report.results] == ["unsupported", "unsupported"]
    assert [r.what for r in report.results] == ["softmax has no option axis", "no forms of gelu"]
    assert "softmax" not in report.not_offered


def test_a_program_may_compute_in_float32(program):
    """One that says so gets float32 and is judged as such."""
    answers = misbehaving("say(id, result=relu(x))").replace("hello(id)", "hello(id, dtype='float32')")
    loaded = load(f"command:{program(answers)}")
    assert loaded.subject.dtype == np.float32
    assert loaded.subject.relu(np.array([-1.0, 1.5])).dtype == np.float32
    report = quick(loaded.subject, "relu.agrees*", "relu.the_dtype*")
    loaded.subject.namespace.close()
    assert report.passed, str(report)


# ----------------------------------------------------------------------------------------------- misbehaviour


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("os.abort()", "the program crashed (SIGABRT)"),
        ("os._exit(3)", "the program ended (exit code 3)"),
        ("sys.exit()", "the program ended (exit code 0)"),
        ("os.close(0); os.close(1); time.sleep(5)", "the program closed its input or output"),
        ("print('debug: 5 numbers', flush=True)", "no JSON object"),
        ("print('[1]', flush=True)", "it is no object"),
        ("print('[' * 100_000, flush=True)", "no JSON object"),
        ("print('9' * 100_000, flush=True)", "no JSON object"),
        ("os.write(1, b'\\xff\\xfe\\n')", "no JSON object"),
        ("os.write(1, b'x' * 500_000); time.sleep(5); os._exit(0)", "a line of more than 400,000 bytes"),
        ("os.write(1, b'x' * 500_000 + b'\\n')", "no JSON object|more than 400,000 bytes"),
        ("say(id - 1, result=relu(x))", "answered request 1, and was asked 2"),
        ("say(None, result=relu(x))", "answered request None"),
        ("say(float(id), result=relu(x))", "answered request 2.0"),
        ("say(id)", "this one none of them"),
        ("say(id, result=relu(x), error='no')", "this one result and error"),
        ("say(id, result={**x, 'data': [float('nan')] * 5})", "NaN must be spelt as a string"),
        ("say(id, result={**x, 'data': ['nan'] * 5})", "'nan' is no number"),
        ("say(id, result='five')", "'five' is no number"),
        ("say(id, result={**x, 'shape': [4]})", "has room for 4 numbers, and data holds 5"),
        ("say(id, result={**x, 'shape': [10**5] * 9})", "numbers, and data holds 5"),
        ("say(id, result={**x, 'shape': [10**12, 0], 'data': []})", "shape must be a list of sizes"),
        ("say(id, result={**x, 'shape': [0] * 99, 'data': []})", "cannot be made of shape"),
        ("say(id, result={**x, 'shape': [-5]})", "shape must be a list of sizes"),
        ("say(id, result={**x, 'shape': 5})", "shape must be a list of sizes"),
        ("say(id, result={**x, 'data': 5})", "data must be a flat list"),
        ("say(id, result={**x, 'data': [[1.0]] * 5})", "[1.0] is nothing that an array of float64 holds"),
        ("say(id, result={**x, 'data': [True] * 5})", "True is nothing that an array of float64 holds"),
        ("say(id, result={**x, 'dtype': 'int64', 'data': [0.5] * 5})", "0.5 is nothing that an array of int64 holds"),
        ("say(id, result={**x, 'dtype': 'int32', 'data': [2**40] * 5})", "cannot be made"),
        ("say(id, result={**x, 'dtype': 'object'})", "dtype must be one of"),
        ("say(id, result={'data': []})", "dtype must be one of"),
    ],
)
def test_what_is_no_reply_fails_and_the_program_is_started_afresh(program, started, monkeypatch, how, said):
    """It is said what came instead of a reply; the old process is gone, and the next call is answered by a new one."""
    monkeypatch.setattr(process, "LONGEST_LINE", 400_000)
    subject = started(program(misbehaving(how)))
    before = subject._program._process.pid
    with pytest.raises(ProgramFailed) as failed:
        subject.relu(np.arange(5.0))
    assert re.search(said if "|" in said else re.escape(said), failed.value.what), failed.value.what
    assert failed.value.what.startswith("relu: ")
    assert is_gone(before)
    assert subject.relu(np.array([-1.0, 2.0])).tolist() == [0.0, 2.0]
    assert subject._program._process.pid != before


def test_words_on_stderr_and_long_arrays_block_nobody(program, started, capfd):
    """A program that writes much to stderr, and gets and gives more than a pipe holds, is heard all the same."""
    how = "sys.stderr.write('x' * 1_000_000 + 'last words'); say(id, result=relu(x))"
    talks_first = misbehaving(how).replace("hello(id)", "hello(id); sys.stderr.write('x' * 1_000_000)")
    subject = started(program(talks_first))
    numbers = np.arange(50_000.0)
    assert (subject.relu(numbers) == numbers).all()
    assert subject.relu(np.ones(2)).tolist() == [1.0, 1.0]
    assert "last words" in capfd.readouterr().err


def test_a_refusal_is_no_failure_and_a_crash_is_no_refusal(program):
    """On bad input `error` passes as an exception does; ending the process does not."""
    refuses = "say(id, error='no floats') if x['dtype'] != 'float64' else say(id, result=relu(x))"
    for how, verdict in ((refuses, "passed"), (refuses.replace("say(id, error='no floats')", "sys.exit()"), "failed")):
        loaded = load(f"command:{program(misbehaving(how).replace('> 3', '>= 0'))}")
        with pytest.raises((SubjectError, ProgramFailed)):
            loaded.subject.namespace.relu(np.arange(3))
        (result,) = quick(loaded.subject, "relu.a_wrong_dtype*").results
        loaded.subject.namespace.close()
        assert (result.verdict, result.kind) == (verdict, None if verdict == "passed" else "crash"), result.what


def test_a_component_that_never_answers_is_given_up(program, started):
    """What breaks the program every time is not tried for ever; what has answered once is."""
    subject = started(program(misbehaving("sys.exit()").replace("> 3", "!= 2")))
    for _ in range(process.GIVING_UP_AFTER):
        with pytest.raises(ProgramFailed, match="exit code 0"):
            subject.relu(np.ones(5))
    with pytest.raises(ProgramFailed, match="relu is not asked again: it broke the program 10 times"):
        subject.relu(np.ones(2))
    subject = started(program(misbehaving("sys.exit()")))
    subject.relu(np.ones(2))
    for _ in range(process.GIVING_UP_AFTER + 1):
        with pytest.raises(ProgramFailed, match="exit code 0"):
            subject.relu(np.ones(5))


def test_a_program_that_comes_back_as_another_is_a_failure(program, started, tmp_path):
    """One that offers something else when it is started again, or does not start, is not the one being checked."""
    code = misbehaving("sys.exit()").replace("hello(id)", "hello(id, dtype=open(DTYPE).read())")
    dtype = tmp_path / "dtype"
    dtype.write_text("float64")
    subject = started(program(f"DTYPE = {str(dtype)!r}\n{code}"))
    with pytest.raises(ProgramFailed):
        subject.relu(np.ones(5))
    dtype.write_text("float32")
    with pytest.raises(ProgramFailed, match="another hello"):
        subject.relu(np.ones(2))
    (tmp_path / "program.py").unlink()
    with pytest.raises(ProgramFailed, match=r"relu: the program ended \(exit code 2\); it said: .*No such file"):
        subject.relu(np.ones(2))


def test_failures_are_shrunk_through_the_line(program):
    """A wrong answer, and a crash, come with the smallest input that has one."""
    wrong = "say(id, result={**x, 'data': [v + (v > 2) for v in relu(x)['data']]})"
    for how, kind in ((wrong, "mismatch"), ("sys.exit() if max(x['data']) > 2 else say(id, result=relu(x))", "crash")):
        loaded = load(f"command:{program(misbehaving(how).replace('> 3', '> 0'))}")
        report = quick(loaded.subject, "relu.agrees*", max_examples=50)
        loaded.subject.namespace.close()
        (result,) = report.failures
        assert result.kind == kind
        (call,) = result.calls
        assert sorted(set(call["args"][0]["data"]))[:-1] in ([], [0.0]), "one number, and zeros"
        assert max(call["args"][0]["data"]) <= 3


def test_hangs_and_crashes_of_a_program_are_failures_and_the_rest_goes_on(program, tmp_path):
    """In the worker a silent program is a hang; what it said on stderr is shown, and its processes are gone."""
    note = tmp_path / "pids"
    code = f"""
import signal, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
for line in sys.stdin:
    request = json.loads(line)
    id, call = request["id"], request["call"]
    if call == "hello":
        hello(id, components=["relu", "gelu", "softmax"])
        child = subprocess.Popen(["sleep", "30"])
        open({str(note)!r}, "a").write(f"{{os.getpid()}} {{child.pid}} ")
    elif call == "gelu":
        print("out of luck", file=sys.stderr)
        os.abort()
    elif call == "softmax":
        time.sleep(30)
    else:
        say(id, result=relu(request["arguments"]["x"]))
"""
    names = ("relu", "gelu", "softmax")
    command = f"command:{program(code)}"
    report = quick(command, *(f"{name}.agrees*.plain" for name in names), time_limit=3)
    relu, gelu, softmax = (next(r for r in report.results if r.component == name) for name in names)
    assert relu.verdict == "passed"
    assert (gelu.verdict, gelu.kind, gelu.what) == ("failed", "crash", "gelu: the program crashed (SIGABRT)")
    assert "out of luck" in gelu.output
    assert (softmax.verdict, softmax.kind, softmax.what) == ("failed", "hang", "softmax did not return within 3 s")
    assert f"subject = Process({command.removeprefix('command:')!r})" in gelu.reproduction
    assert all(is_gone(int(pid)) for pid in note.read_text().split())
    assert len(note.read_text().split()) >= 6, "it was started afresh after the crash and the hang"


# ----------------------------------------------------------------------------------------------- what cannot start


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("sys.exit('no licence')", "the program ended (exit code 1); it said: no licence"),
        ("os.abort()", "the program crashed (SIGABRT)"),
        ("time.sleep(60)", "did not answer within 0.5 s"),
        ("print('Welcome!', flush=True); time.sleep(60)", "no JSON object"),
        ("hello(1, spec_version='99.0.0')", f"speaks specification '99.0.0', and this is {SPEC_VERSION}"),
        ("hello(1, spec_version=None)", "speaks specification None"),
        ("hello(2)", "answered request 2, and was asked 1"),
        ("hello(1, components=['relu', 'layernorm'])", "'layernorm' is no component"),
        ("hello(1, components=['sample_vjp'])", "'sample_vjp' is no component"),
        ("hello(1, components='relu')", "components must be a list of names"),
        ("hello(1, components=[])", "nothing offered"),
        ("hello(1, dtype='int64')", "dtype must be"),
        ("hello(1, options=['axis'])", "options must hold a list of names"),
        ("hello(1, options={'relu': ['slope']})", "options must be those of components offered, got 'slope' in 'relu'"),
        ("hello(1, options={'rleu': []})", "options must be those of components offered, got 'rleu'"),
    ],
)
def test_a_program_without_a_hello_cannot_be_checked(program, monkeypatch, code, said):
    """One line says what came instead of the hello, with the program's own last words."""
    monkeypatch.setattr(process, "HELLO_LIMIT", 0.5 if "sleep(60)" in code and "print" not in code else 30.0)
    with pytest.raises(CannotLoad) as problem:
        load(f"command:{program(code)}")
    assert said in str(problem.value)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("./no_such_program --fast", "./no_such_program cannot be started: No such file or directory"),
        (str(ROOT), "cannot be started: Permission denied"),
        ("", "the command is empty"),
        ("./program 'unfinished", "cannot be split into words: No closing quotation"),
    ],
)
def test_a_command_that_starts_nothing_is_said_to(command, said):
    """What is no program is an error of one line, also from the command."""
    with pytest.raises(CannotLoad) as problem:
        load(f"command:{command}")
    assert said in str(problem.value)


def test_no_shell_sees_the_command(program, tmp_path):
    """The command is split into words, and what a shell would do with them is not done."""
    note = tmp_path / "note"
    code = f"open({str(note)!r}, 'w').write(json.dumps(sys.argv[1:])); hello(1)"
    load(f"command:{program(code)} '$HOME; touch x' *").subject.namespace.close()
    assert json.loads(note.read_text()) == ["$HOME; touch x", "*"]


def test_expected_failures_stand_beside_the_program(program, tmp_path):
    """The list beside the first file that has one, among the words of the command, is the one that counts."""
    command = program(misbehaving("say(id, result=x)"))
    other = tmp_path / "options.json"
    other.write_text("{}")
    assert load(f"command:{command} {other}").xfails_file is None
    listed = tmp_path / "program.xfails.toml"
    listed.write_text('[[xfail]]\nproperty = "relu.agrees*"\nreason = "it is the identity"\n')
    assert load(f"command:{command} {other}").xfails_file == listed


@pytest.mark.parametrize("arguments", [[], ["torch_nn", "--command", "./program"]])
def test_the_command_checks_one_subject(arguments):
    """Neither a subject nor a program, or both, is an error of one line."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "spec_tests.kit.cli", "check", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "give a subject, or a program with --command" in done.stderr


# ----------------------------------------------------------------------------------------------- nothing stays

STARTS_A_CHILD = """
import signal, subprocess
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "30"])
hello(1)
open(NOTE + ".part", "w").write(f"{os.getpid()} {child.pid}")
os.rename(NOTE + ".part", NOTE)
time.sleep(30)
"""
"""A program that hangs after its hello, and does not mind that its input closes."""


def _await_note(note):
    for _ in range(1200):
        if note.exists():
            return [int(pid) for pid in note.read_text().split()]
        time.sleep(0.05)
    raise AssertionError("the program was not started")


def test_closing_ends_the_program_with_its_children(program, tmp_path):
    """`close` leaves no process and no zombie, of program, child or guard."""
    note = tmp_path / "note"
    subject = Process(program(f"NOTE = {str(note)!r}\n{STARTS_A_CHILD}"))
    pids = [*_await_note(note), subject._program._guard.pid]
    subject.close()
    subject.close()
    assert all(map(is_gone, pids))
    assert subject._program._process.returncode == -signal.SIGKILL
    assert subject._program._guard.returncode == -signal.SIGKILL


def test_a_killed_owner_leaves_no_orphan(program, tmp_path):
    """The program goes even where we are killed and can do nothing about it."""
    note = tmp_path / "note"
    command = program(f"NOTE = {str(note)!r}\n{STARTS_A_CHILD}")
    code = (
        f"import time\nfrom spec_tests.subjects.process import Process\nsubject = Process({command!r})\ntime.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    pids = _await_note(note)
    owner.kill()
    owner.wait()
    assert all(map(is_gone, pids))


def test_ctrl_c_leaves_no_process(program, tmp_path):
    """Interrupted, the command ends with 130 and the program with it."""
    note = tmp_path / "note"
    command = program(f"NOTE = {str(note)!r}\n{STARTS_A_CHILD}")
    running = subprocess.Popen(
        [sys.executable, "-P", "-m", "spec_tests.kit.cli", "check", "--command", command],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores Ctrl-C
    )  # fmt: skip
    pids = _await_note(note)
    os.killpg(running.pid, signal.SIGINT)
    running.communicate(timeout=60)
    assert running.returncode == 130
    assert all(map(is_gone, pids))


# ----------------------------------------------------------------------------------------------- the examples


@pytest.fixture(scope="session")
def c_subject(tmp_path_factory):
    """Build the example in C, and give its command."""
    if not (EXAMPLES / "c").is_dir():
        pytest.skip("the examples are in the repository, not in the installed package")
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    built = tmp_path_factory.mktemp("c") / "subject"
    source = EXAMPLES / "c" / "subject.c"
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", built, source, "-lm"], check=True, timeout=120)
    return shlex.quote(str(built))


@pytest.fixture(scope="session")
def javascript_subject():
    """Give the command of the example in JavaScript."""
    if not (EXAMPLES / "javascript").is_dir():
        pytest.skip("the examples are in the repository, not in the installed package")
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    return shlex.join(["node", str(EXAMPLES / "javascript" / "subject.js")])


@pytest.mark.parametrize("example", ["c_subject", "javascript_subject"])
def test_the_examples_pass(request, example):
    """The examples in C and JavaScript offer five components whole: every property passes, and none is unsupported."""
    loaded = load(f"command:{request.getfixturevalue(example)}")
    report = quick(loaded.subject, max_examples=2)
    loaded.subject.namespace.close()
    assert report.passed, str(report)
    assert {result.verdict for result in report.results} == {"passed"}
    offered = {"softmax", "layer_norm", "gelu", "scaled_dot_product_attention", "multi_head_attention"}
    assert {result.component for result in report.results} == offered


@pytest.mark.parametrize(
    ("example", "property_id", "pitfall"),
    [
        ("c_subject", "layer_norm.every_row_has_variance*", "layer_norm.unbiased_std"),
        (
            "javascript_subject",
            "scaled_dot_product_attention.a_causal_query_sees*",
            "causal_mask.aligned_to_the_first_key",
        ),
    ],
)
def test_the_mistake_planted_in_an_example_is_found_and_named(request, example, property_id, pitfall):
    """With --mistake the property about it fails, and the report names the mistake."""
    command = request.getfixturevalue(example)
    report = quick(f"command:{command} --mistake", property_id, max_examples=30)
    assert [result.verdict for result in report.results] == ["failed"]
    assert pitfall in str(report)


@in_the_repository
def test_the_program_on_the_page_passes(tmp_path):
    """The smallest program, as the page shows it, passes all that it is asked."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert f'"spec_version": "{SPEC_VERSION}"' in code
    file = tmp_path / "softmax.py"
    file.write_text(code)
    loaded = load(f"command:{shlex.join([sys.executable, '-I', '-S', str(file)])}")
    report = quick(loaded.subject)
    loaded.subject.namespace.close()
    assert report.passed, str(report)
    counts = {verdict: sum(r.verdict == verdict for r in report.results) for verdict in ("passed", "unsupported")}
    assert counts["passed"] > 10
    assert counts["unsupported"] == sum(r.what == "softmax has no option axis" for r in report.results)


@in_the_repository
def test_the_lines_on_the_page_fit_the_schema():
    """Every line that the page shows is in the form of the schema."""
    shown = re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in shown for line in block.splitlines()]
    assert len(lines) == 6
    for line in lines:
        assert problems(json.loads(line), SCHEMA) == []


# ----------------------------------------------------------------------------------------------- DLPack


class OnlyDLPack:
    """An array that NumPy cannot read but through DLPack."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        """Hand over the array."""
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        """Say where it lives."""
        return self._array.__dlpack_device__()


def test_a_result_that_speaks_only_dlpack_is_read():
    """What has `__dlpack__` and nothing else that NumPy knows is an array, alone and in a tuple."""
    right = SimpleNamespace(
        relu=lambda x: OnlyDLPack(np.maximum(x, 0)),
        clip_grad_norm=lambda grads, *, max_norm: (grads, OnlyDLPack(np.asarray(0.0))),
    )
    assert quick(right, "relu.agrees*", "relu.the_same*", "relu.the_dtype*").passed
    assert quick(SimpleNamespace(relu=lambda x: OnlyDLPack(np.abs(x))), "relu.agrees*", max_examples=30).exit_code == 1
    grads, norm = load(right).subject.clip_grad_norm([np.zeros(2)], max_norm=1.0)
    assert isinstance(norm, np.ndarray)
    assert grads[0].shape == (2,)
