"""Implementations that others ship: what each does otherwise is listed beside it, with reasons, and nothing else is."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUBJECTS = ROOT / "examples" / "subjects"

THIRD_PARTIES = {
    "jax_nn": ("jax",),
    "flax_linen": ("jax", "flax", "optax"),
    "onnx_ops": ("onnx",),
    "keras_ops": ("keras",),
}

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        not SUBJECTS.is_dir(), reason="the examples are in the repository, not in the installed package"
    ),
]


@pytest.fixture(params=THIRD_PARTIES)
def third_party(request):
    """Give a subject whose packages are installed."""
    if missing := [package for package in THIRD_PARTIES[request.param] if find_spec(package) is None]:
        pytest.skip(f"{missing[0]} is not installed: pip install transformer-spec[third-party]")
    return SUBJECTS / f"{request.param}.py"


def test_a_third_party_differs_in_what_is_listed_and_in_nothing_else(third_party):
    """Every failure is expected, and what is expected to fail does; in a process of its own, for JAX starts threads."""
    command = [
        sys.executable,
        "-m",
        "spec_tests.kit.cli",
        "check",
        str(third_party),
        "--max-examples",
        "4",
        "--seed",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("name", ["jax_nn", "flax_linen"])
def test_the_one_pass_variance_of_jax_is_found_to_be_imprecise(name):
    """In float32, 10000 + {0, 1, 2, 3} have no variance left; on ordinary rows nobody can tell."""
    if missing := [package for package in THIRD_PARTIES[name] if find_spec(package) is None]:
        pytest.skip(f"{missing[0]} is not installed: pip install transformer-spec[third-party]")
    command = [sys.executable, "-m", "spec_tests.kit.cli", "precision", str(SUBJECTS / f"{name}.py")]
    options = ["--component", "layer_norm", "--dtype", "float32"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1, done.stderr
    assert "IMPRECISE, " in done.stdout
    assert "IMPRECISE: gives -474.34" in done.stdout
