"""The kit's own behaviour: what it makes of subjects that are wrong, rude, slow or gone."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from reference import SPEC_VERSION
from reference.components import COMPONENTS
from spec_tests import check
from spec_tests.kit import runner, xfails
from spec_tests.kit.cli import app
from spec_tests.kit.report import SHOWN, plain
from spec_tests.kit.runner import CannotRun
from spec_tests.meta.schema import problems
from spec_tests.subjects import loading

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "subjects"
SCHEMA = json.loads((ROOT / "spec_tests" / "kit" / "report.schema.json").read_text())

RELU = "import numpy as np\n\n\ndef relu(x):\n    return np.maximum(x, 0)\n\n\n"
"""A subject that refuses nothing, which its expected failures say."""

RELU_XFAILS = """
[[xfail]]
property = "relu.*_is_refused.*"
reason = "it takes whole numbers"
"""


@pytest.fixture(autouse=True)
def one_worker(monkeypatch):
    """Let one worker do: a second one takes seconds to start."""
    monkeypatch.setattr(runner, "WORKERS", 1)


@pytest.fixture
def subject_file(tmp_path):
    """Write a subject file, and the file of its expected failures."""

    def write(code, xfails="", name="mine.py"):
        file = tmp_path / name
        file.write_text(code)
        if xfails:
            file.with_suffix(".xfails.toml").write_text(xfails)
        return file

    return write


def quick(subject, *properties, **options):
    """Check the properties of these ids with few examples."""
    return check(subject, properties=properties, **{"max_examples": 5, "seed": 7, **options})


def result_of(report, name):
    """Give the result of the property whose id has this in it."""
    (result,) = [r for r in report.results if name in r.id]
    return result


def cli(*arguments, cwd=ROOT, **options):
    """Run the command in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    command = [sys.executable, "-P", "-m", "spec_tests.kit.cli", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, **options)


def run_here(arguments):
    """Run the command in this process and give its exit code."""
    with pytest.raises(SystemExit) as end:
        app(arguments)
    return end.value.code


# ----------------------------------------------------------------------------------------------- verdicts


class right:  # noqa: N801 (a namespace)
    """A subject that is right, but refuses nothing."""

    @staticmethod
    def relu(x):
        """Return max(0, x)."""
        return np.maximum(x, 0)


def wrong(function):
    """Give a namespace whose relu is this function."""
    return {"relu": function}


def test_a_right_subject_passes():
    """What does what the contract says passes."""
    report = quick(right, "relu.agrees*", "relu.arguments*", "relu.the_same*")
    assert report.passed, str(report)
    assert {r.verdict for r in report.results} == {"passed"}
    assert len(report.results) == 3
    assert report.failures == ()


def test_a_wrong_subject_fails_with_its_sentence_and_a_small_input():
    """A failure says what is true, what came, what should have come, and shows a shrunk input."""
    report = quick(wrong(np.abs), "relu.agrees*", max_examples=40)
    (result,) = report.failures
    assert report.exit_code == 1
    assert "NumPy reference" in result.sentence
    (call,) = result.calls
    assert set(call["args"][0]["data"]) <= {0.0, -1.0, -0.1, -0.5, -3.0}, "a shrunk input"
    assert result.got["data"] != result.should["data"]
    assert result.sentence in str(report)


def leave():
    """Try to end the process."""
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("relu", "said"),
    [
        (lambda x: leave(), "relu raised SystemExit: 0 (test_kit.py, line"),
        (lambda x: x.no_luck, "relu raised AttributeError: 'numpy.ndarray' object has no attribute 'no_luck'"),
        (lambda x: x[..., None], "relu returned float64 of shape"),
        (lambda x: np.full_like(x, np.nan), "is NaN"),
        (lambda x: "zero", "relu returned str, which is no array of numbers"),
        (lambda x: object(), "relu returned object, which is no array of numbers"),
        (lambda x: (x, x), "relu returned tuple"),
    ],
)
def test_what_a_subject_gets_wrong_is_said(relu, said):
    """Raising (even to end the process), a wrong shape, NaN and a foreign type are failures that say so."""
    (result,) = quick(wrong(relu), "relu.agrees*").failures
    assert said in result.what


def test_whims_are_reported():
    """A subject that draws its own numbers is told so, whatever else is wrong."""
    generator = np.random.default_rng()
    report = quick(wrong(lambda x: np.maximum(x, 0) + generator.random()), "relu.the_same*")
    (result,) = report.failures
    assert "same" in result.what or "same" in result.sentence


def test_changed_arguments_are_reported():
    """A subject that writes into its arguments fails the property about that."""

    def relu(x):
        x[x < 0] = 0
        return x

    assert quick(wrong(relu), "relu.arguments*", max_examples=30).exit_code == 1


# ----------------------------------------------------------------------------------------------- hangs and crashes


def test_hangs_and_crashes_are_failures_and_the_rest_goes_on(subject_file, monkeypatch):
    """What hangs or crashes fails with the call in flight; the rest is checked all the same."""
    monkeypatch.setattr(runner, "GIVING_UP_AFTER", 1)
    code = """
import os, signal
import numpy as np

def token_embedding(ids, table):
    print("last words")
    os._exit(3)

def softmax(scores):
    os.kill(os.getpid(), signal.SIGSEGV)

def layer_norm(x, gamma, beta):
    while True:
        pass

def relu(x):
    return np.maximum(x, 0)
"""
    report = quick(
        subject_file(code),
        "*.agrees_with_the_reference.plain",
        "*.the_same_call*.plain",
        "*.arguments*.plain",
        time_limit=0.5,
    )
    first = {r.component: r for r in reversed(report.results)}
    assert first["token_embedding"].what == "token_embedding ended the process (exit code 3)"
    assert first["softmax"].what == "softmax crashed the process (SIGSEGV)"
    assert first["layer_norm"].what == "layer_norm did not return within 0.5 s"
    assert [first[name].kind for name in ("token_embedding", "softmax", "layer_norm")] == ["crash", "crash", "hang"]
    assert first["token_embedding"].calls[0]["component"] == "token_embedding"
    assert "last words" in first["token_embedding"].output
    assert "subject.token_embedding(ids, table)" in first["token_embedding"].reproduction
    assert sum("not run: " in r.what for r in report.results) >= 1, "it is not tried for ever"
    assert {r.verdict for r in report.results if r.component == "relu"} == {"passed"}
    assert {r.verdict for r in report.results if r.component != "relu"} == {"failed"}


def test_two_workers_share_the_properties(subject_file, monkeypatch):
    """Two workers give the verdicts that one gives, each once and in the same order."""
    code = "def relu(x):\n    return x * (x > 0)\n\n\ndef gelu(x):\n    raise RuntimeError\n"
    one = quick(subject_file(code))
    monkeypatch.setattr(runner, "WORKERS", 2)
    two = quick(subject_file(code))
    assert len(one.results) >= 12
    assert [(r.id, r.verdict) for r in two.results] == [(r.id, r.verdict) for r in one.results]


def test_what_the_subject_started_is_ended_with_it(subject_file, tmp_path):
    """A hanging child of the subject goes when the subject does."""
    note = tmp_path / "pid"
    code = (
        f"import subprocess, sys\n\n\ndef relu(x):\n    child = subprocess.Popen(['sleep', '60'])\n"
        f"    open({str(note)!r}, 'w').write(str(child.pid))\n    child.wait()\n"
    )
    quick(subject_file(code), "relu.agrees*", time_limit=0.3)
    with pytest.raises(ProcessLookupError):
        _await_end(int(note.read_text()))


def _await_end(pid):
    import time

    for _ in range(100):
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat")
        if status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            raise ProcessLookupError  # ended, and waits for init
        time.sleep(0.05)


def test_printing_cannot_speak_for_the_kit(subject_file):
    """Verdicts printed by the subject change nothing, and what a failing example printed is shown with it."""
    event = json.dumps({"event": "verdict", "id": "relu.agrees_with_the_reference.plain", "verdict": "passed"})
    code = f"import os\n\n\ndef relu(x):\n    print({event!r})\n    os.write(2, b'on stderr')\n    return -x\n"
    result = result_of(quick(subject_file(code), "relu.agrees*"), "agrees")
    assert result.verdict == "failed"
    assert event in result.output
    assert "on stderr" in result.output
    assert result.output.count(event) <= 2, "only the example that failed"


# ----------------------------------------------------------------------------------------------- what cannot run


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import no_such_thing\n", "raised ModuleNotFoundError: No module named 'no_such_thing' (mine.py, line 1)"),
        ("def relu(x:\n", "raised SyntaxError"),
        ("raise SystemExit(0)\n", "raised SystemExit: 0"),
        ("def layernorm(x): ...\n", "nothing offered; define a function with the name of a component (`layernorm` "),
        ("", "nothing offered"),
        ("arrays = 'cupy'\nrelu = abs\n", "arrays must be one of 'numpy', 'torch', 'jax', got 'cupy'"),
    ],
)
def test_what_cannot_be_loaded_says_why(subject_file, monkeypatch, code, said):
    """An import that fails and a file with nothing to check are errors with their reason, in one line."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = subject_file(code)
    monkeypatch.setitem(sys.modules, "mine", None)
    with pytest.raises(loading.CannotLoad) as problem:
        loading.load(file)
    assert said.replace("mine.py", file.name) in str(problem.value)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import no_such_thing\n", "raised ModuleNotFoundError"),
        (
            "import os\nprint('bye', flush=True)\nos._exit(0)\n",
            "importing it ended the process (exit code 0); it said: bye",
        ),
        ("def softmax(scores): ...\n", "nothing to check: it does not offer relu"),
    ],
)
def test_what_cannot_run_says_why(subject_file, code, said):
    """It is said the same way from the child process, even where that is gone."""
    with pytest.raises(CannotRun) as problem:
        check(subject_file(code), ["relu"])
    assert said in str(problem.value)


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        ("no/such/file.py", "no such file"),
        ("no_such_module", "no such module"),
        ("examples/subjects", "not a file"),
        ("not a name", "neither a Python file nor the name of a module"),
    ],
)
def test_a_subject_that_is_not_there_is_said_to_be(subject, said, monkeypatch):
    """Neither file nor module: one line says so."""
    monkeypatch.chdir(ROOT)
    with pytest.raises(loading.CannotLoad, match=said):
        loading.load(subject)


def test_an_unknown_component_is_an_error_with_a_hint():
    """A misspelt component is not silently left out."""
    with pytest.raises(CannotRun, match="did you mean layer_norm"):
        check("torch_nn", ["layernorm"])


def test_nothing_supported_is_not_a_pass():
    """A subject that supports nothing of what it offers does not pass: exit code 2."""

    def relu(x):
        raise NotImplementedError

    report = quick(wrong(relu), "relu.*")
    assert {r.verdict for r in report.results} == {"unsupported"}
    assert report.exit_code == 2
    assert not report.passed


# ----------------------------------------------------------------------------------------------- expected failures


def test_an_unexpected_pass_is_a_failure(subject_file):
    """Expected failures are strict."""
    listed = (
        RELU_XFAILS + '[[xfail]]\nproperty = "relu.agrees*"\nreason = "we thought so"\nlink = "https://x.example"\n'
    )
    report = quick(subject_file(RELU, listed), "relu.*")
    (result,) = report.failures
    assert "xfailed" in {r.verdict for r in report.results}
    assert result.verdict == "xpassed"
    assert report.exit_code == 1
    assert "we thought so" in str(report)


def test_an_expected_failure_may_be_for_one_dtype():
    """An expected failure for float32 expects nothing in float64."""
    listed = (xfails.Xfail(property="relu.*", reason="it rounds", dtype="float32"),)
    assert xfails.expected(listed, "relu.agrees", "float32") is listed[0]
    assert xfails.expected(listed, "relu.agrees", "float64") is None
    assert xfails.expected(listed, "gelu.agrees", "float32") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[xfail]]\nproperty = "relu.no_such"\nreason = "x"\n', "'relu.no_such' matches no property"),
        ('[[xfail]]\nproperty = "relu.*"\n', "xfail 1 needs a reason"),
        ('[[xfail]]\nproperty = "relu.*"\nreason = "x"\nwhy = "x"\n', "'why'"),
        ("[[xfail\n", "mine.xfails.toml"),
        ('xfails = ["relu"]\n', "[[xfail]] tables and nothing else"),
    ],
)
def test_a_bad_file_of_expected_failures_is_an_error(tmp_path, text, said):
    """What the file of expected failures cannot mean is said, not skipped."""
    file = tmp_path / "mine.xfails.toml"
    file.write_text(text)
    with pytest.raises(xfails.BadXfails) as problem:
        xfails.check_known(xfails.read(file), ["relu.agrees"], file)
    assert said in str(problem.value)


def test_a_bad_file_of_expected_failures_stops_the_check(subject_file):
    """Nothing is reported as long as an expected failure matches nothing."""
    text = '[[xfail]]\nproperty = "relu.no_such"\nreason = "x"\n'
    with pytest.raises(CannotRun, match="matches no property"):
        quick(subject_file(RELU, text))


# ----------------------------------------------------------------------------------------------- reports


def test_a_seed_reproduces_the_run():
    """The same seed draws the same examples, and the report names it."""

    def run(seed):
        seen = []

        def relu(x):
            seen.append(x.tolist())
            return x * 2

        report = quick(wrong(relu), "relu.agrees*", seed=seed)
        (result,) = report.results
        assert f"seed {seed}" in str(report)
        return seen, result.what, result.calls

    assert run(7) == run(7)
    assert run(7)[0] != run(8)[0]


def test_the_json_report_fits_its_schema():
    """Every kind of verdict and value is in the form that report.schema.json promises."""

    class subject:  # noqa: N801 (a namespace)
        relu = staticmethod(lambda x: np.maximum(x, 0))
        clip_grad_norm = staticmethod(lambda grads, *, max_norm: (grads, np.asarray(np.nan)))
        parameter_count = staticmethod(lambda config: 1)
        gelu = staticmethod(lambda x: x)

    report = quick(subject, "*.agrees*", max_examples=2)
    data = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert problems(data, SCHEMA) == []
    assert min(data["counts"][verdict] for verdict in ("passed", "failed", "unsupported")) > 0
    for kind in ('"nan"', '"$": "config"'):
        assert kind in json.dumps(data["results"])
    data["results"][0]["verdict"] = "fine"
    assert problems(data, SCHEMA), "the check of the schema must be able to fail"


def test_reproductions_run_and_print_what_came(subject_file, tmp_path):
    """The lines of each failure run as they stand, with NumPy and the subject alone, and show got and should."""
    code = """
import numpy as np

def layer_norm(x, gamma, beta, *, eps=1e-5):
    return np.full_like(x, np.inf)

def transformer_block(x, params, config, *, mask=None, keep=None):
    return x * np.nan

def clip_grad_norm(grads, *, max_norm):
    return grads, np.asarray(0.5)

def sinusoidal_positions(seq, d_model):
    return np.ones((seq, d_model))

def parameter_count(config):
    return 7
"""
    properties = [f"{name}.agrees*.p*" for name in ("layer_norm", "clip_grad_norm")]
    report = quick(
        subject_file(code),
        *properties,
        "transformer_block.agrees*.post",
        "sinusoidal_positions.agrees*.plain",
        "parameter_count.agrees*.plain",
    )
    assert len(report.failures) == 5, str(report)
    for number, result in enumerate(report.failures):
        script = tmp_path / f"reproduce_{number}.py"
        script.write_text(result.reproduction)
    every = tmp_path / "every.py"
    every.write_text("import runpy\n" + "".join(f"runpy.run_path('reproduce_{n}.py')\nprint('--')\n" for n in range(5)))
    done = subprocess.run(
        [sys.executable, str(every)],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for printed in done.stdout.split("--\n")[:5]:
        assert printed.startswith("got")
        assert "should" in printed


def test_what_a_subject_says_is_escaped_and_cut():
    """Markup, terminal codes and endless texts of a subject reach the reader as plain, short text."""

    def relu(x):
        raise ValueError("[red]no[/red] \x1b[2J\u202e" + "x" * 100_000)

    text = str(quick(wrong(relu), "relu.agrees*"))
    assert "[red]no[/red] \\x1b[2J\\u202e" in text
    assert "\x1b" not in text
    assert "more characters" in text
    assert "x" * (SHOWN + 1) not in text


def test_plain_keeps_what_is_visible():
    """Letters of any script stay; what would move the cursor, hide or turn the text is spelt."""
    assert plain("Äß 漢字 λ\n") == "Äß 漢字 λ\n"
    assert plain("\x1b[31m\x9b\u200f\ud800") == r"\x1b[31m\x9b\u200f\ud800"


# ----------------------------------------------------------------------------------------------- from Python


def test_any_namespace_is_a_subject():
    """`check` takes functions in a class, a dict or any object."""
    for namespace in (right, {"relu": right.relu}, SimpleNamespace(relu=right.relu)):
        report = quick(namespace, "relu.agrees*")
        assert report.passed
        assert "softmax" in report.not_offered


def test_our_own_backends_are_held_to_their_errors():
    """`reference.numpy` is strict: its error types and messages are part of the specification."""
    report = quick("reference.numpy", "relu.*", "causal_mask.*")
    assert report.passed, str(report)
    assert loading.load("reference.numpy").subject.strict


# ----------------------------------------------------------------------------------------------- the command


def test_check_prints_a_report_and_exits_1_for_a_mistake(tmp_path):
    """The plausible mistake among the examples is found, with a reproduction, and the JSON report written."""
    file = tmp_path / "report.json"
    done = cli(
        "check",
        EXAMPLES / "unbiased_layer_norm.py",
        "--max-examples",
        5,
        "--seed",
        3,
        "--property",
        "layer_norm.agrees*",
        "--json",
        file,
    )
    assert done.returncode == 1, done.stderr
    for text in ("layer_norm", "seed 3", "FAILED", "got", "should", "subject.layer_norm(x", "not offered: "):
        assert text in done.stdout
    assert problems(json.loads(file.read_text()), SCHEMA) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check", "no/such.py"], "no/such.py: no such file"),
        (["check", "torch_nn", "--thorough", "--max-examples", "3"], "not both"),
        (["check", "torch_nn", "--max-examples", "0"], "at least 1"),
        (["check", "torch_nn", "--json", "/no/such/folder/x.json"], "its folder does not exist"),
        (["explain", "layer_nrom"], "did you mean layer_norm"),
        (["new", "somewhere/without/folder.py"], "No such file or directory"),
        (["new", "subject.txt"], "ends in .py"),
    ],
)
def test_errors_take_one_line_and_exit_code_2(arguments, said, tmp_path, monkeypatch, capsys):
    """What cannot be done is said in one line."""
    monkeypatch.chdir(tmp_path)
    assert run_here(arguments) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert len(printed.err.splitlines()) == 1
    assert printed.out == ""


def test_new_writes_a_subject_that_can_be_checked_at_once(tmp_path, capsys):
    """The file offers every component and supports none yet; it is not written over."""
    file = tmp_path / "fresh.py"
    assert run_here(["new", str(file)]) == 0
    report = quick(file, "*.agrees*.plain", max_examples=1)
    assert {r.verdict for r in report.results} == {"unsupported"}
    assert report.not_offered == ()
    assert run_here(["new", str(file)]) == 2
    assert "exists" in capsys.readouterr().err


def test_list_and_explain_say_what_is_specified(capsys):
    """`list` names each component with its sentence; `explain` has formula, shapes, properties and source."""
    assert run_here(["list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(COMPONENTS)
    assert run_here(["explain", "multi_head_attention"]) == 0
    explained = capsys.readouterr().out
    for text in (COMPONENTS["multi_head_attention"].formula, "n_heads", "*batch q_seq d_model", "agrees", "Vaswani"):
        assert text in explained


def test_light_commands_import_no_torch():
    """Asking what is specified does not wait for torch."""
    code = (
        "import sys; sys.argv = ['transformer-spec', 'list']\n"
        "from spec_tests.kit.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stderr.strip() == "False"


def test_the_help_of_check_says_whose_rights_it_uses(capsys):
    """Nobody should check a stranger's code unawares."""
    assert run_here(["check", "--help"]) == 0
    assert "with your rights" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_version_names_package_and_specification(capsys):
    """--version shows both."""
    assert run_here(["--version"]) == 0
    assert f"specification {SPEC_VERSION}" in capsys.readouterr().out
