"""The pytest plugin: the same properties as tests, for a subject from outside."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]

SUBJECT = """
import numpy as np

def relu(x):
    return np.maximum(x, 0)

def gelu(x):
    return x / 2
"""

XFAILS = """
[[xfail]]
property = "gelu.agrees*.plain"
reason = "it is linear"
"""

AGREES = ["--pyargs", "spec_tests.test_contract", "-k", "agrees and (relu or gelu)", "--spec-max-examples", "3"]


@pytest.fixture
def folder(tmp_path):
    """Give a user's folder, with a subject and a test of their own."""
    (tmp_path / "mine.py").write_text(SUBJECT)
    (tmp_path / "mine.xfails.toml").write_text(XFAILS)
    (tmp_path / "test_own.py").write_text(
        "import sys\n\n\ndef test_own():\n    assert 'torch' not in sys.modules and 'hypothesis' not in sys.modules\n"
    )
    return tmp_path


def run(folder, *arguments):
    """Run pytest there, with the plugin."""
    installed = "transformer_spec" in _entry_points()
    command = [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rA"]
    command += [] if installed else ["-p", "spec_tests.kit.pytest_plugin"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "REFERENCE_", "SPEC_"))}
    environment["PYTHONPATH"] = str(ROOT)
    return subprocess.run(
        [*command, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=180
    )


def _entry_points():
    from importlib.metadata import entry_points

    return {entry.name for entry in entry_points(group="pytest11")}


def test_a_subject_is_checked_by_its_name_and_its_expected_failures(folder):
    """Properties carry the subject in their ids; expected failures are xfails, and lacking options skips."""
    done = run(folder, *AGREES, "--subject", "mine.py", "-n", "2", "--junitxml", "junit.xml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_agrees_with_the_reference[relu.plain-mine.py]" in done.stdout
    assert "XFAIL" in done.stdout
    assert "it is linear" in done.stdout
    assert "SKIPPED" in done.stdout, "gelu has no option approximate"
    assert "softmax" not in done.stdout, "what is not offered is left out"
    (suite,) = ElementTree.parse(folder / "junit.xml").getroot().iter("testsuite")
    assert (int(suite.get("failures")), int(suite.get("errors")), int(suite.get("skipped"))) == (0, 0, 2)


def test_an_unexpected_pass_fails_and_a_failure_can_be_reproduced(folder):
    """Expected failures are strict; a failed property shows the lines that reproduce it."""
    (folder / "mine.xfails.toml").write_text(XFAILS.replace("gelu", "relu"))
    done = run(folder, *AGREES, "--subject", "mine.py")
    assert done.returncode == 1
    assert "[XPASS(strict)] it is linear" in done.stdout
    assert "reproduce with" in done.stdout
    assert "got = subject.gelu(x)" in done.stdout


@pytest.mark.parametrize(
    ("subject", "said"), [("nowhere.py", "nowhere.py: no such file"), ("test_own.py", "nothing offered")]
)
def test_a_subject_that_cannot_be_loaded_is_a_usage_error(folder, subject, said):
    """One line says what is wrong, before anything is collected."""
    done = run(folder, "--pyargs", "spec_tests.test_contract", "--subject", subject)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: {subject}" in done.stderr
    assert said in done.stderr


def test_other_peoples_tests_notice_nothing(folder):
    """The plugin imports nothing heavy into a run that is not about the specification."""
    done = run(folder, "test_own.py", "-p", "no:hypothesispytest")
    assert done.returncode == 0, done.stdout


def test_the_tests_of_this_house_are_left_out_for_a_subject(folder):
    """With --subject only properties run."""
    done = run(folder, "--pyargs", "spec_tests.meta.test_kit_pytest", "--subject", "mine.py", "--collect-only")
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "deselected" in done.stdout


def test_properties_about_gradients_are_asked_of_those_who_have_them(folder):
    """A function of tensors has gradients by autograd; one of NumPy arrays has none, and is asked for none."""
    (folder / "tensors.py").write_text("arrays = 'torch'\n\n\ndef softmax(scores):\n    return scores.softmax(-1)\n")
    (folder / "arrays.py").write_text("def softmax(scores):\n    return scores\n")
    wanted = ["--pyargs", "spec_tests.test_attention", "-k", "test_rows_sum_to_1 or the_gradient_of_a_row_sums_to_0"]
    wanted += ["--subject", "tensors.py", "--subject", "arrays.py", "--collect-only"]
    collected = run(folder, *wanted).stdout
    assert "test_the_gradient_of_a_row_sums_to_0[tensors.py]" in collected
    assert "test_the_gradient_of_a_row_sums_to_0[arrays.py]" not in collected
    assert "[arrays.py]" in collected
