"""A run that is stopped, by whatever, goes on to the very bytes of the run that was not."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from jaxtyping import config as jaxtyping_config

from reference import cli
from reference import torch as torch_backend
from reference.checkpoint import CHECKPOINT, Checkpoint, RunOptions, load_checkpoint, save_checkpoint
from reference.config import ModelConfig
from reference.data import Batch, TextWindows, builtin_text
from reference.numpy import training as numpy_training
from reference.parameters import Tree, init_params, leaves, map_tree
from reference.recipe import Recipe
from reference.runs import Moments, OnStep, Step
from reference.torch import training as torch_training
from spec_tests.reference.test_training_command import batches_of, metrics, one_line, press, run

BACKENDS = ("numpy", "torch")
FILES = ["metrics.jsonl", CHECKPOINT]
FEW = ("--preset", "tiny", "--steps", "4", "--batch", "4", "--seq", "8", "--eval-every", "2")


pytestmark = pytest.mark.usefixtures("ctrl_c")


def begin(out: Path, text: Path, *options: object, backend: str = "numpy") -> Any:
    """Begin a run of few steps in this process."""
    return run("train", *FEW, "--backend", backend, "--data", text, "--out", out, *options)


def resume(out: Path, *options: object) -> Any:
    """Go on with a run in this process."""
    return run("train", "--resume", out, *options)


def assert_same_run(one: Path, other: Path) -> None:
    """Hold two runs to have the same checkpoint, byte for byte, the same metrics, and nothing else beside them."""
    assert sorted(os.listdir(one)) == sorted(os.listdir(other)) == FILES
    assert (one / CHECKPOINT).read_bytes() == (other / CHECKPOINT).read_bytes()
    assert metrics(one) == metrics(other)


# The functions: run(n + m) is run(n), save, load, run(m)

SMALL = ModelConfig(
    vocab=7, d_model=4, n_heads=2, n_layers=2, d_ff=6, max_len=9, dropout=0.3, attention_bias=True, tied_head=True
)
RECIPE = Recipe(steps=6, lr=0.03, warmup=2, weight_decay=0.1, clip_norm=0.5, seed=5)


def train_numpy(params: Tree, moments: Moments, batches: Callable[[int], Batch], on_step: OnStep) -> Checkpoint:
    """Train with NumPy from some moment on."""
    params, after = numpy_training.train(params, SMALL, batches, RECIPE, moments=moments, on_step=on_step)
    return Checkpoint(config=SMALL, params=params, step=after.step, moments=after)


def train_torch(params: Tree, moments: Moments, batches: Callable[[int], Batch], on_step: OnStep) -> Checkpoint:
    """Train with PyTorch from some moment on."""
    dtype = {"float32": torch.float32, "float64": torch.float64}[params["token_embedding"]["table"].dtype.name]
    model = torch_backend.Transformer(SMALL, dtype=dtype)
    torch_backend.load_params(model, params)
    after = torch_training.train(model, batches, RECIPE, moments=moments, on_step=on_step)
    return Checkpoint(config=SMALL, params=torch_backend.export_params(model), step=after.step, moments=after)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("train", [train_numpy, train_torch])
def test_a_resumed_run_is_the_run(tmp_path: Path, train: Callable[..., Checkpoint], dtype: str) -> None:
    """After n steps, a file and m steps, parameters, moments, records and batches are those of n + m steps."""
    draw = batches_of(SMALL)

    def observed(params: Tree, moments: Moments) -> tuple[Path, list[Step], list[int], list[Checkpoint]]:
        asked, steps, saved = [], [], []

        def batches(step: int) -> Batch:
            asked.append(step)
            return draw(step)

        def on_step(step: Step, snapshot: Any) -> None:
            params, moments = snapshot()
            steps.append(step)
            saved.append(Checkpoint(config=SMALL, params=params, step=step.number, moments=moments))

        path = tmp_path / "end"
        save_checkpoint(path, train(params, moments, batches, on_step))
        return path.read_bytes(), steps, asked, saved

    params = init_params(SMALL, seed=1, dtype=dtype)
    nothing = Moments(step=0, m=map_tree(np.zeros_like, params), v=map_tree(np.zeros_like, params))
    end, steps, asked, saved = observed(params, nothing)
    assert asked == list(range(RECIPE.steps))
    assert len({step.loss for step in steps}) == RECIPE.steps
    saved.insert(0, Checkpoint(config=SMALL, params=params, step=0, moments=nothing))
    for n, at in enumerate(saved):
        save_checkpoint(tmp_path / "at", at)
        found = load_checkpoint(tmp_path / "at")
        rest = observed(found.params, found.moments)
        assert rest[:3] == (end, steps[n:], asked[n:])


def test_moments_matter(tmp_path: Path) -> None:
    """The comparison above sees moments that were lost, and a dropout that begins anew."""
    params = init_params(SMALL, seed=1)
    saved: list[tuple[Tree, Moments]] = []
    for train in (train_numpy, train_torch):
        saved.clear()
        end = train(params, None, batches_of(SMALL), lambda _, snapshot: saved.append(snapshot()))
        middle, moments = saved[2]
        for wrong in (
            Moments(step=3, m=map_tree(np.zeros_like, moments.m), v=moments.v),
            Moments(step=3, m=moments.m, v=map_tree(np.zeros_like, moments.v)),
            Moments(step=2, m=moments.m, v=moments.v),
        ):
            other = train(middle, wrong, batches_of(SMALL), lambda *_: None)
            assert any((a != b).any() for (_, a), (_, b) in zip(leaves(end.params), leaves(other.params), strict=True))


# The command


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("name", "call", "step"),
    [
        ("evaluation", 1, 0),  # before anything was measured
        ("batch", 1, 0),
        ("batch", 2, 1),
        ("evaluation", 2, 2),  # the step has been taken, and is not yet measured
        ("batch", 3, 2),
        ("evaluation", 3, 4),  # all but the last measurement
    ],
)
def test_ctrl_c_and_resume(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch, backend: str, name: str, call: int, step: int
) -> None:
    """A run stopped by Ctrl-C and resumed ends in the same bytes and the same metrics as one that was not."""
    assert begin(tmp_path / "whole", text, backend=backend).exit_code == 0
    whole, calls = getattr(TextWindows, name), 0

    def pressed(*arguments: Any) -> Any:
        nonlocal calls
        if (calls := calls + 1) == call:
            press()
        return whole(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(TextWindows, name, pressed)
        assert begin(tmp_path / "a", text, backend=backend).exit_code == 130
    assert load_checkpoint(tmp_path / "a").step == step + (name == "batch")
    result = resume(tmp_path / "a")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == f"saved step 4 in {tmp_path / 'a' / CHECKPOINT}"
    assert_same_run(tmp_path / "a", tmp_path / "whole")


def test_a_finished_run_says_so(tmp_path: Path, text: Path) -> None:
    """A run that has reached its end is left as it is, but for a half file."""
    begin(tmp_path / "a", text)
    (tmp_path / "a" / f"{CHECKPOINT}.partial").write_bytes(b"half")
    before = {name: (tmp_path / "a" / name).read_bytes() for name in FILES}
    result = resume(tmp_path / "a")
    assert result.exit_code == 0
    assert result.stdout == f"the run is finished: step 4/4 is saved in {tmp_path / 'a' / CHECKPOINT}\n"
    assert {name: (tmp_path / "a" / name).read_bytes() for name in FILES} == before
    assert sorted(os.listdir(tmp_path / "a")) == FILES


def stopped_at_2(tmp_path: Path, text: Path, *options: str, backend: str = "numpy") -> Path:
    """Make a run that has its checkpoint of step 2, and records up to step 4, as a killed one has."""
    out = tmp_path / "a"

    def stop(self: cli.RunFolder, checkpoint: Checkpoint) -> None:
        if checkpoint.step < 4:
            save(self, checkpoint)

    save = cli.RunFolder.save
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cli.RunFolder, "save", stop)
        assert begin(out, text, *options, backend=backend).exit_code == 0
    assert load_checkpoint(out).step == 2
    return out


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "torn", [b"", b'{"step": 4, "validation_l', b"\0" * 50, b'{"step": 5, "loss": 1.0}\n', b"\xff"]
)
def test_records_after_the_checkpoint_come_again(tmp_path: Path, text: Path, backend: str, torn: bytes) -> None:
    """Records of later steps, and half a line, are taken away before the run goes on."""
    begin(tmp_path / "whole", text, backend=backend)
    out = stopped_at_2(tmp_path, text, backend=backend)
    with (out / "metrics.jsonl").open("ab") as file:
        file.write(torn)
    (out / f"{CHECKPOINT}.partial").write_bytes(b"half")
    assert resume(out).exit_code == 0
    assert_same_run(out, tmp_path / "whole")


def test_metrics_that_were_moved_away(tmp_path: Path, text: Path) -> None:
    """Without its metrics a run goes on with new ones, and measures the checkpoint once more."""
    begin(tmp_path / "whole", text)
    out = stopped_at_2(tmp_path, text)
    (out / "metrics.jsonl").unlink()
    assert resume(out).exit_code == 0
    assert metrics(out) == metrics(tmp_path / "whole")[3:]
    assert (out / CHECKPOINT).read_bytes() == (tmp_path / "whole" / CHECKPOINT).read_bytes()


def _without_moments(out: Path) -> None:
    save_checkpoint(out / CHECKPOINT, replace(load_checkpoint(out), moments=None))


def _without_options(out: Path) -> None:
    save_checkpoint(out / CHECKPOINT, replace(load_checkpoint(out), run=None))


def _changed(**changes: Any) -> Callable[[Path], None]:
    def change(out: Path) -> None:
        found = load_checkpoint(out)
        assert found.run is not None
        fields = {name: value for name, value in changes.items() if name in RunOptions.__dataclass_fields__}
        others = {name: value for name, value in changes.items() if name not in fields}
        save_checkpoint(out / CHECKPOINT, replace(found, run=replace(found.run, **fields), **others))

    return change


@pytest.mark.parametrize(
    ("change", "options", "reason"),
    [
        (None, ["--steps", "9"], "a resumed run must keep its options, got --resume with --steps; leave --steps out"),
        (None, ["--steps", "4"], "got --resume with --steps"),
        (None, ["--compile"], "got --resume with --compile"),
        (None, ["--no-causal"], "got --resume with --no-causal"),
        (None, ["--backend", "torch"], "got --resume with --backend"),
        (None, ["--out", "{out}/b"], "one of --out and --resume must be given, got both"),
        (None, ["--resume", "{out}/none"], "--resume must be the folder of a run, got"),
        (None, ["--resume", "{out}/model.safetensors"], "--resume must be the folder of a run, got"),
        (None, ["--resume", "{out}/.."], "without model.safetensors; begin again with --out"),
        (None, ["--data", "{out}/none"], "must be possible, got No such file"),
        (None, ["--data", "builtin"], "a run must go on with its own data, got other bytes in builtin; resume with"),
        (None, ["--data", "{out}/../data/other"], "a run must go on with its own data, got other bytes in"),
        (_without_moments, [], "must have recipe, options and the optimizer's moments to go on, got"),
        (_without_options, [], "must have recipe, options and the optimizer's moments to go on, got"),
        (lambda out: (out / CHECKPOINT).write_bytes(b"x" * 99), [], "a checkpoint must be whole"),
        (lambda out: (out / CHECKPOINT).unlink() or (out / CHECKPOINT).symlink_to("x"), [], "got No such file"),
        (lambda out: (out / CHECKPOINT).unlink() or (out / CHECKPOINT).mkdir(), [], "got"),
        (lambda out: (out / CHECKPOINT).unlink() or os.mkfifo(out / CHECKPOINT), [], "regular file"),
        (lambda out: (out / "metrics.jsonl").write_text("hello\n"), [], "must hold a record of train in each line"),
        (lambda out: (out / "metrics.jsonl").write_text("[]\n"), [], "must hold a record of train in each line"),
        (lambda out: (out / "metrics.jsonl").unlink() or os.mkfifo(out / "metrics.jsonl"), [], "regular file"),
        (lambda out: (out / "metrics.jsonl").unlink() or (out / "metrics.jsonl").mkdir(), [], "regular file"),
        (_changed(data="/none/here"), [], "say with --data where the data of the run are now"),
        (_changed(data_sha256="0" * 64), [], "a run must go on with its own data"),
        (_changed(recipe=Recipe(steps=1)), [], "a run must fit its own options, got step 2 of 1"),
        (_changed(recipe=Recipe(steps=9, seq=65)), [], "a run must fit its own options, got seq 65 with max_len 64"),
        (_changed(dtype="float64"), [], "a run must fit its own options, got dtype float64 with parameters of float32"),
        (_changed(backend="torch", device="warp"), [], "--device must be there and compute, got warp"),
    ],
)  # fmt: skip
def test_what_cannot_be_resumed_is_one_line(
    tmp_path: Path, text: Path, change: Callable[[Path], object] | None, options: list[str], reason: str
) -> None:
    """What cannot go on is refused in one line with exit code 2, and nothing is made or changed."""
    out = stopped_at_2(tmp_path, text)
    (text.parent / "other").write_bytes(text.read_bytes()[:-1] + b"!")
    if change is not None:
        change(out)

    def state() -> dict[Path, bytes | None]:
        return {path: path.read_bytes() if path.is_file() else None for path in sorted(tmp_path.rglob("*"))}

    before = state()
    message = one_line(resume(out, *(option.format(out=out) for option in options)), 2)
    assert reason in message
    assert state() == before


def test_neither_out_nor_resume() -> None:
    """A run needs a folder, a new one or its own."""
    assert "one of --out and --resume must be given, got neither" in one_line(run("train"), 2)


def test_data_may_have_moved(tmp_path: Path, text: Path) -> None:
    """--data says where the data are now; the checkpoint keeps the name that they had."""
    begin(tmp_path / "whole", text)
    out = stopped_at_2(tmp_path, text)
    result = resume(out, "--data", text.rename(tmp_path / "moved"))
    assert result.exit_code == 0, result.output
    assert_same_run(out, tmp_path / "whole")


def test_a_folder_belongs_to_one_run(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a run writes its folder, new or resumed, another is refused."""
    refusals: list[str] = []
    whole = cli.RunFolder.log

    def log(self: cli.RunFolder, record: dict[str, Any]) -> None:
        whole(self, record)
        if record["step"] == 3 and "loss" in record:
            with monkeypatch.context() as patched:
                patched.setattr(cli.RunFolder, "log", whole)
                refusals.append(one_line(resume(self.path), 2))

    monkeypatch.setattr(cli.RunFolder, "log", log)
    begin(tmp_path / "whole", text)
    out = stopped_at_2(tmp_path, text)
    assert resume(out).exit_code == 0
    assert_same_run(out, tmp_path / "whole")
    assert len(refusals) == 3
    for refusal in refusals:
        assert "a folder must belong to one run at a time, got" in refusal


def test_a_full_disk_while_it_goes_on(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run that cannot save keeps the checkpoint that it began with, and can be resumed again."""
    begin(tmp_path / "whole", text)
    out = stopped_at_2(tmp_path, text)

    def full(_: int) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        message = one_line(resume(out), 2)
    assert "No space left on device; free the disk, or change its permissions (the checkpoint of step 2" in message
    assert load_checkpoint(out).step == 2
    assert resume(out).exit_code == 0
    assert_same_run(out, tmp_path / "whole")


# The NumPy backend


def test_numpy_trains_on_text(tmp_path: Path) -> None:
    """With NumPy the loss on held-out English falls, and the options are kept in the checkpoint."""
    (tmp_path / "text").write_bytes(builtin_text()[:6000])
    result = begin(
        tmp_path / "a", tmp_path / "text", "--steps", 60, "--lr", "1e-2", "--batch", 8, "--seq", 16, "--eval-every", 30
    )
    assert result.exit_code == 0, result.output
    losses = [record["validation_loss"] for record in metrics(tmp_path / "a") if "validation_loss" in record]
    assert losses[0] == pytest.approx(np.log(256), abs=0.1)
    assert losses[0] > losses[1] > losses[2]
    assert losses[2] < losses[0] - 1
    found = load_checkpoint(tmp_path / "a")
    assert found.config.vocab == 256
    assert found.run is not None
    assert (found.run.backend, found.run.data) == ("numpy", str(tmp_path / "text"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--dtype", "bfloat16"], "on the CPU in float32 or float64, got --dtype bfloat16; leave it out"),
        (["--device", "cuda"], "on the CPU in float32 or float64, got --device cuda; leave it out"),
        (["--compile"], "on the CPU in float32 or float64, got --compile; leave it out"),
        (["--backend", "jax"], "--backend must be torch or numpy, got jax; choose one of them"),
    ],
)
def test_what_numpy_does_not_do(tmp_path: Path, text: Path, options: list[str], reason: str) -> None:
    """What belongs to PyTorch alone is refused in one line."""
    assert reason in one_line(begin(tmp_path / "a", text, *options), 2)
    assert os.listdir(tmp_path) == ["data"]


def test_either_backend_makes_the_same_run(tmp_path: Path, text: Path) -> None:
    """The same options in float64 give the same losses and parameters in either backend, up to rounding."""
    for backend in BACKENDS:
        begin(tmp_path / backend, text, "--dtype", "float64", "--steps", 20, "--lr", "1e-2", backend=backend)
    for one, other in zip(metrics(tmp_path / "numpy"), metrics(tmp_path / "torch"), strict=True):
        assert one == pytest.approx(other, abs=1e-9)
    params = [dict(leaves(load_checkpoint(tmp_path / backend).params)) for backend in BACKENDS]
    for name, array in params[0].items():
        assert array.dtype == params[1][name].dtype == np.float64
        np.testing.assert_allclose(array, params[1][name], rtol=0, atol=1e-8)


def test_shape_checks_are_left_out_of_the_loop(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with NumPy leaves the checks out while it trains, and puts them back, whatever ends it."""
    seen: list[bool] = []
    whole = TextWindows.batch

    def batch(self: TextWindows, step: int) -> Batch:
        seen.append(jaxtyping_config.jaxtyping_disable)
        if step == 2:
            raise KeyboardInterrupt
        return whole(self, step)

    monkeypatch.setattr(TextWindows, "batch", batch)
    assert begin(tmp_path / "a", text).exit_code == 130
    assert seen == [True, True, True]
    assert not jaxtyping_config.jaxtyping_disable


WITHOUT_TORCH = """
import sys
from reference import cli
text, out = sys.argv[1:]
for arguments in (
    ["train", "--backend", "numpy", "--preset", "tiny", "--steps", "2", "--seq", "4", "--data", text, "--out", out],
    ["train", "--resume", out],
    ["generate", "--backend", "numpy", "--checkpoint", out, "--prompt", "a", "--max-new-tokens", "2"],
):
    try:
        cli.app(arguments)
    except SystemExit as end:
        assert end.code == 0, arguments
assert not {"torch", "scipy"} & set(sys.modules), sorted(sys.modules)
"""


def test_numpy_needs_no_torch(tmp_path: Path, text: Path) -> None:
    """With NumPy nothing imports torch: not training, not resuming, not generating."""
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH, text, tmp_path / "a"], check=True, capture_output=True)


# SIGKILL


class Forks:
    """A process of `killed_runs`."""

    # With what they import late.
    IMPORTS: ClassVar = {
        "numpy": ("reference.numpy.training", "rich.progress"),
        "torch": ("reference.torch.training", "rich.progress", "torch._dynamo"),
    }

    def __init__(self, backend: str) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "REFERENCE_SHAPE_CHECKS"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "spec_tests.reference.killed_runs", *self.IMPORTS[backend]],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**environment, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def __enter__(self) -> "Forks":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, *arguments: object, kill: tuple[str, float] = ("", 0)) -> dict[str, Any]:
        """Run a fork, and say how it ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"arguments": [str(argument) for argument in arguments], "kill": kill}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@pytest.fixture(scope="module")
def numpy_forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Give a process whose forks begin where it has trained once, so that they have nothing left to import."""
    folder = tmp_path_factory.mktemp("warm")
    (folder / "text").write_bytes(bytes(500))
    with Forks("numpy") as forks:
        forks.run(
            *FEW, "--backend", "numpy", "--data", folder / "text", "--out", folder / "a", kill=("warm", 0)
        )  # fmt: skip
        yield forks


def step_of(out: Path) -> int | None:
    """Hold a folder to have nothing but a run, and give the step of its checkpoint, which is whole, if there is one."""
    assert set(os.listdir(out)) <= {*FILES, f"{CHECKPOINT}.partial"}
    return load_checkpoint(out).step if (out / CHECKPOINT).exists() else None


def go_on_to_the_end(forks: Forks, out: Path, whole: Path) -> None:
    """Resume a run that was killed, and hold its end to be that of the whole run."""
    step = step_of(out)
    result = forks.run("--resume", out)
    if step is None:
        assert result["exit"] == 2
        assert "begin again with --out, for this run was stopped before its first one" in result["err"]
    else:
        assert (result["exit"], result["err"]) == (0, "")
        assert_same_run(out, whole)


def places_to_die(lines: list[list[str]], *, every: bool) -> list[int]:
    """Choose among the lines of a run: all, or each for the first time in each save, and for the last in the second."""
    if every:
        return list(range(len(lines)))
    saves, first, last = 0, {}, {}
    for place, (function, line) in enumerate(lines):
        first.setdefault((saves, function, line), place)
        if saves == 1:
            last[function, line] = place
        saves += (function, line) == ("save", "self.saved_step = checkpoint.step")
    return sorted({*first.values(), *last.values()})


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_run_killed_at_every_boundary_of_a_save(tmp_path: Path, text: Path, numpy_forks: Forks, every: bool) -> None:
    """A run with NumPy, killed with SIGKILL before any line that changes a file, goes on to the same bytes.

    So it is when the process dies before the temporary file is opened, after, after each write, after flush, between
    sync and rename, after the rename, and after the folder's sync; and in the middle of a write.
    """
    options = (*FEW, "--backend", "numpy", "--data", text)
    whole, out = tmp_path / "whole", tmp_path / "a"
    watched = numpy_forks.run(*options, "--out", whole, kill=("watch", 0))
    assert (watched["exit"], watched["err"]) == (0, "")
    size = (whole / CHECKPOINT).stat().st_size

    steps: list[int] = []
    partial: set[str] = set()
    gone_on: set[str] = set()

    def kill(kind: str, place: int) -> None:
        assert numpy_forks.run(*options, "--out", out, kill=(kind, place))["exit"] == -signal.SIGKILL
        steps.append(-1 if (step := step_of(out)) is None else step)
        if (half := out / f"{CHECKPOINT}.partial").exists():
            length = half.stat().st_size
            partial.add("empty" if length == 0 else "whole" if length == size else "some")
        # What is left is often what was left before, the clock's numbers aside.
        left = [(file.name, file.read_bytes()) for file in sorted(out.glob("model*"))]
        state = repr((left, re.sub('"tokens_per_second": [^}]*', "", (out / "metrics.jsonl").read_text())))
        if every or state not in gone_on:
            go_on_to_the_end(numpy_forks, out, whole)
            gone_on.add(state)
        shutil.rmtree(out)

    for place in places_to_die(watched["lines"], every=every):
        kill("line", place)
    assert steps == sorted(steps)  # the later it dies, the more is saved
    assert set(steps) == {-1, 0, 2, 4}
    for place, (name, _) in enumerate(watched["writes"]):
        if every or name == "metrics.jsonl" or place % 19 == 0:
            kill("half", place)
    assert partial == {"empty", "some", "whole"}
    assert len(gone_on) > 10


def test_a_resumption_killed_at_every_boundary(tmp_path: Path, text: Path, numpy_forks: Forks) -> None:
    """A run that is killed while it takes away what came after its checkpoint can be resumed once more."""
    begin(tmp_path / "whole", text)
    out = stopped_at_2(tmp_path, text)
    (out / f"{CHECKPOINT}.partial").write_bytes(b"half")
    kept = shutil.copytree(out, tmp_path / "kept")
    lines = numpy_forks.run("--resume", out, kill=("watch", 0))["lines"]
    assert_same_run(out, tmp_path / "whole")
    places = [place for place, (function, _) in enumerate(lines) if function == "go_back_to"]
    for place in (*places[::7], *places[-4:]):
        shutil.rmtree(out)
        shutil.copytree(kept, out)
        assert numpy_forks.run("--resume", out, kill=("line", place))["exit"] == -signal.SIGKILL
        go_on_to_the_end(numpy_forks, out, tmp_path / "whole")


def test_torch_killed_at_three_moments(tmp_path: Path, text: Path) -> None:
    """A run with PyTorch, killed between two steps, before a rename or after it, goes on to the same bytes."""
    options = (*FEW, "--backend", "torch", "--data", text)
    whole, out = tmp_path / "whole", tmp_path / "a"
    with Forks("torch") as forks:
        lines = [tuple(line) for line in forks.run(*options, "--out", whole, kill=("watch", 0))["lines"]]
        logs = [place for place, line in enumerate(lines) if line[0] == "log" and line[1].startswith("before =")]
        renames = [place for place, line in enumerate(lines) if line == ("write_whole", "temporary.replace(path)")]
        for place, step in ((logs[4], 2), (renames[1], 0), (renames[1] + 1, 2)):
            assert forks.run(*options, "--out", out, kill=("line", place))["exit"] == -signal.SIGKILL
            assert step_of(out) == step
            go_on_to_the_end(forks, out, whole)
            shutil.rmtree(out)


@pytest.mark.thorough
@pytest.mark.parametrize(("backend", "trials"), [("numpy", 20), ("torch", 10)])
def test_a_run_killed_at_random(tmp_path: Path, text: Path, backend: str, trials: int) -> None:
    """A run that is killed at any moment, again and again, goes on to the same bytes."""
    options = (*FEW, "--backend", backend, "--data", text, "--steps", 12, "--eval-every", 1)
    whole, out = tmp_path / "whole", tmp_path / "a"
    with Forks(backend) as forks:
        if backend == "numpy":  # autograd refuses to work in a fork of a process in which it has worked
            forks.run(*options, "--out", tmp_path / "warm", kill=("warm", 0))
        begun = time.perf_counter()
        assert forks.run(*options, "--out", whole)["exit"] == 0
        seconds = time.perf_counter() - begun
        for _ in range(trials):
            moments = [random.uniform(0, seconds) for _ in range(3)]
            forks.run(*options, "--out", out, kill=("after", moments[0]))
            for moment in moments[1:]:
                if (out / CHECKPOINT).exists():
                    step_of(out)
                    forks.run("--resume", out, kill=("after", moment))
            if out.exists():
                go_on_to_the_end(forks, out, whole)
                shutil.rmtree(out)
