"""The commands that use the models: train, generate, plot.

Nothing heavy is imported before a command runs, so that asking for help stays fast. Whatever a user can get
wrong ends in one line on stderr and exit code 2; a run that diverges ends with 1, Ctrl-C with 130.
"""

import codecs
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import typer

from reference.checkpoint import (
    BACKENDS,
    CHECKPOINT,
    RUN_DTYPES,
    Checkpoint,
    RunOptions,
    load_checkpoint,
    partial,
    save_checkpoint,
    write_whole,
)
from reference.config import PRESETS
from reference.data import VOCAB, Batch, Dataset, datasets, digest
from reference.parameters import Tree, init_params, leaves, map_tree
from reference.recipe import Recipe
from reference.runs import DivergenceError, Evaluation, Moments, OnStep, Snapshot, Step

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Train a transformer, let it write, look inside.")

Item = TypeVar("Item")


# Errors


class Refusal(Exception):
    """What a command says, in one line, instead of doing what it was asked."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        self.exit_code = exit_code
        super().__init__(message)


@contextmanager
def one_line_errors(command: str) -> Generator[None, None, None]:
    """Turn a Refusal into one line on stderr with its exit code, and Ctrl-C into exit code 130."""
    try:
        yield
    except Refusal as refusal:
        line = printable(" ".join(str(refusal).split()))
        typer.echo(f"transformer-spec {command}: {line}", err=True)
        raise typer.Exit(refusal.exit_code) from refusal
    except KeyboardInterrupt as interrupt:
        reason = f": {interrupt}" if str(interrupt) else ""
        typer.echo(f"transformer-spec {command}: interrupted{reason}", err=True)
        raise typer.Exit(130) from interrupt


@contextmanager
def refusing(doing: str = "", fix: str = "") -> Generator[None, None, None]:
    """Turn the errors by which `reference` refuses values and the system refuses files into Refusals."""
    try:
        yield
    except OSError as problem:
        raise Refusal(f"{doing} must be possible, got {problem.strerror or problem}; {fix}") from problem
    except MemoryError as problem:
        raise Refusal(f"it must fit in memory, got {problem}; make it smaller") from problem
    except (ValueError, IndexError, TypeError) as problem:
        # `Recipe: steps must ...` -> `steps must ...`: the command's name stands there instead.
        component, colon, invariant = str(problem).partition(": ")
        message = invariant if colon and component.isidentifier() else str(problem)
        raise Refusal(message if "; " in message or not fix else f"{message}; {fix}") from problem


def printable(text: str) -> str:
    r"""Escape what does not print, newline and tab excepted, so that no text can steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


class Stopped(KeyboardInterrupt):
    """Ctrl-C, raised where the run is whole: between two steps or two batches of an evaluation."""


class Interrupts:
    """While it is entered, the first Ctrl-C waits for the next safe point and the second stops at once.

    In `shielded` parts neither has an effect before their end.
    """

    def __init__(self) -> None:
        self._pressed = 0
        self._shielded = False
        self._before: Any = None

    def __enter__(self) -> "Interrupts":
        # In a thread no handler can be set; where Ctrl-C is ignored (nohup) it stays so.
        self._active = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
        )
        if self._active:
            self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        if self._active:
            signal.signal(signal.SIGINT, self._before)

    def _on_signal(self, *_: object) -> None:
        self._pressed += 1
        if self._pressed > 1 and not self._shielded:
            raise KeyboardInterrupt

    def safe_point(self) -> None:
        """Raise Stopped if Ctrl-C was pressed."""
        if self._pressed:
            raise Stopped

    def watched(self, items: Iterable[Item]) -> Iterator[Item]:
        """Put a safe point before each item."""
        for item in items:
            self.safe_point()
            yield item

    @contextmanager
    def shielded(self) -> Generator[None, None, None]:
        """Let no Ctrl-C into the body."""
        self._shielded = True
        try:
            yield
        finally:
            self._shielded = False


class RunFolder:
    """The folder of one run: `metrics.jsonl`, a line a step or evaluation, and `model.safetensors`.

    A new run makes it, and takes it away again if it leaves without a checkpoint; a resumed one finds it. While it
    is entered no other run may enter it: the lock goes with the process, however that ends.
    """

    def __init__(self, path: Path, *, resumed: bool = False) -> None:
        self.path = path
        self.resumed = resumed
        self.saved_step: int | None = None
        self.evaluated = False  # whether the last record is the evaluation of the last step

    def __enter__(self) -> "RunFolder":
        self._open = ExitStack()
        self._made = [] if self.resumed else [f for f in (self.path, *self.path.parents) if not f.exists()]
        self._own = False
        try:
            with self._writing(self.path):
                if self.resumed:
                    self._lock()
                else:
                    self.path.mkdir(parents=True)
                    self._own = True
                    self._lock()
                    self._metrics = self._open.enter_context(self._metrics_path.open("xb", buffering=0))
        except BaseException:
            self._open.close()
            self._take_away()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        if self.saved_step is None:
            self._take_away()

    def _lock(self) -> None:
        if fcntl is None:
            return
        folder = os.open(self.path, os.O_RDONLY)
        self._open.callback(os.close, folder)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refusal(
                f"a folder must belong to one run at a time, got {self.path}, which another process is writing; "
                f"wait until that one has ended"
            ) from None
        except OSError:  # a file system that knows no locks
            return

    def discard(self) -> None:
        """Give up the checkpoint of a new run, and with it the folder: the run has not begun."""
        if not self.resumed:
            self.saved_step = None

    def _take_away(self) -> None:
        """Take away what a new run made; a checkpoint may be there that could not be synced."""
        for file in (self._metrics_path, self.path / CHECKPOINT) if self._own else ():
            with suppress(OSError):
                file.unlink()
        for folder in self._made:
            with suppress(OSError):  # what was not made, or is no longer empty
                folder.rmdir()

    @property
    def _metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @contextmanager
    def _writing(self, path: Path) -> Generator[None, None, None]:
        kept = "" if self.saved_step is None else f" ({self.kept})"
        fix = "free the disk, or change its permissions" if self.resumed else "free the disk or choose another --out"
        with refusing(f"writing {path}", fix + kept):
            yield

    @property
    def kept(self) -> str:
        """Say which checkpoint is there."""
        return f"the checkpoint of step {self.saved_step} is kept in {self.path / CHECKPOINT}"

    def go_back_to(self, step: int) -> None:
        """Keep the metrics of a resumed run up to `step`, and no half file: what came after it comes again."""
        self.saved_step = step
        kept = 0
        with self._writing(self._metrics_path):
            self._metrics_path.touch()
            if not self._metrics_path.is_file():
                raise Refusal(f"{self._metrics_path} must be a regular file, got another kind; move it away")
            self._metrics = self._open.enter_context(self._metrics_path.open("r+b", buffering=0))
            with self._metrics_path.open("rb") as lines:
                for line in lines:
                    if not line.endswith(b"\n"):  # the process was killed while it wrote it
                        break
                    if (of := _step_of(line)) is None:
                        raise Refusal(
                            f"{self._metrics_path} must hold a record of train in each line, got "
                            f"{line[:40].decode(errors='replace')}; move it away, and a new one begins"
                        )
                    if of > step:
                        break
                    kept += len(line)
                    self.evaluated = of == step and b'"validation_loss"' in line
            self._metrics.truncate(kept)
            self._metrics.seek(kept)
            partial(self.path / CHECKPOINT).unlink(missing_ok=True)

    def log(self, record: dict[str, Any]) -> None:
        """Append one line of JSON, all of it or nothing; what is not finite is null."""
        finite = {key: value if math.isfinite(value) else None for key, value in record.items()}
        line = memoryview((json.dumps(finite) + "\n").encode())
        before = self._metrics.tell()
        with self._writing(self._metrics_path):
            try:
                while line:
                    line = line[self._metrics.write(line) :]
            except BaseException:
                self._metrics.seek(before)
                self._metrics.truncate()
                raise

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint, once the metrics up to it are on the disk."""
        with self._writing(self._metrics_path):
            os.fsync(self._metrics.fileno())
        with self._writing(self.path / CHECKPOINT):
            save_checkpoint(self.path / CHECKPOINT, checkpoint)
        self.saved_step = checkpoint.step


def _step_of(line: bytes) -> int | None:
    """Read the step of a line of metrics; None where it is no such line."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return step if isinstance(step, int) else None


# train


class Display:
    """A line an evaluation, and on a terminal a live bar under it."""

    def __init__(self, done: int, steps: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(highlight=False, soft_wrap=True)
        columns = (
            TextColumn("step {task.completed}/{task.total}"), BarColumn(bar_width=20),
            TextColumn("loss {task.fields[loss]}  val loss {task.fields[validation]}"),
            TextColumn("ppl {task.fields[perplexity]}  {task.fields[speed]} tokens/s"), TimeRemainingColumn(),
        )  # fmt: skip
        self._steps = steps
        self._console = console
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal)
        fields = dict.fromkeys(("loss", "validation", "perplexity", "speed"), "-")
        self._task = self._bar.add_task("", completed=done, total=steps, **fields)
        self._loss = ""

    def __enter__(self) -> "Display":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def step(self, number: int, loss: float, tokens_per_second: float) -> None:
        """Move the bar."""
        self._loss = f"{loss:.4f}"
        self._bar.update(self._task, completed=number, loss=self._loss, speed=f"{tokens_per_second:,.0f}")

    def evaluated(self, number: int, loss: float, perplexity: float, speed: float, seconds_left: float) -> None:
        """Print the line of an evaluation."""
        self._bar.update(self._task, validation=f"{loss:.4f}", perplexity=f"{perplexity:.2f}")
        trained = f"  loss {self._loss}  {speed:,.0f} tokens/s  left {_clock(seconds_left)}" if self._loss else ""
        self._console.print(
            f"step {number}/{self._steps}  val loss {loss:.4f}  ppl {perplexity:.2f}{trained}", markup=False
        )


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """What a run asks of a backend. `evaluate` measures the parameters that it is given, the latest of the run."""

    train: Callable[[Callable[[int], Batch], OnStep], object]
    evaluate: Callable[[Tree, Iterable[Batch]], Evaluation]


def _stored_dtype(run: RunOptions) -> str:
    # float32 unless asked for otherwise in either backend, so that the same options mean the same run in both.
    return "float64" if run.dtype == "float64" else "float32"


def _model(found: Checkpoint, device: Any = None) -> Any:
    """Build the model of a checkpoint in PyTorch, in the dtype of its parameters."""
    import torch

    from reference import torch as backend

    dtype = next(leaf.dtype.name for _, leaf in leaves(found.params))
    try:  # a file of any size can claim any max_len
        model = backend.Transformer(found.config, device=device, dtype=getattr(torch, dtype))
    except (MemoryError, RuntimeError, OverflowError) as problem:
        reason = str(problem).partition("\n")[0]
        raise Refusal(f"the model must fit in memory, got {reason}; give another checkpoint") from problem
    backend.load_params(model, found.params)
    return model


def _torch_trainer(start: Checkpoint, recipe: Recipe, run: RunOptions, fix: str) -> Trainer:
    import torch

    from reference.torch import training

    autocast = torch.bfloat16 if run.dtype == "bfloat16" else None
    dtype = getattr(torch, _stored_dtype(run))
    try:
        device = torch.device(run.device)
        # A device may have a name and not be there, or not know the dtype; meta computes nothing.
        torch.ones(1, device=device, dtype=dtype).sum().item()
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as problem:
        first = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        raise Refusal(f"--device must be there and compute, got {run.device} ({first}); {fix}") from problem
    model = _model(start, device=device)

    def train(batches: Callable[[int], Batch], on_step: OnStep) -> object:
        return training.train(
            model, batches, recipe, moments=start.moments, on_step=on_step, autocast=autocast, compiled=run.compiled
        )

    return Trainer(train=train, evaluate=lambda _, batches: training.evaluate(model, batches, autocast=autocast))


def _numpy_trainer(start: Checkpoint, recipe: Recipe) -> Trainer:
    from reference.numpy import training
    from reference.shape_checks import unchecked

    # The shapes are those of the config, and to look at them in every call takes about as long as a step of TINY.
    def train(batches: Callable[[int], Batch], on_step: OnStep) -> object:
        with unchecked():
            return training.train(start.params, start.config, batches, recipe, moments=start.moments, on_step=on_step)

    def evaluate(params: Tree, batches: Iterable[Batch]) -> Evaluation:
        with unchecked():
            return training.evaluate(params, start.config, batches)

    return Trainer(train=train, evaluate=evaluate)


def _trainer(start: Checkpoint, recipe: Recipe, run: RunOptions, fix: str) -> Trainer:
    return _numpy_trainer(start, recipe) if run.backend == "numpy" else _torch_trainer(start, recipe, run, fix)


@app.command()
def train(
    context: typer.Context,
    out: Annotated[
        Path | None, typer.Option(help="Folder to make: model.safetensors and metrics.jsonl. Must not exist.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Instead of --out: folder of a run to go on with, from its last checkpoint, with the options it has."
        ),
    ] = None,
    preset: Annotated[str, typer.Option(help="mini (tutorial 001) or tiny (tutorial 000).")] = "mini",
    data: Annotated[
        str,
        typer.Option(help="builtin (English text inside CPython), random (tutorial 001's 1,000 sequences), or a file."),
    ] = "builtin",
    steps: Annotated[int, typer.Option(help="Updates.")] = 300,
    batch: Annotated[int, typer.Option(help="Windows a step.")] = 32,
    seq: Annotated[int, typer.Option(help="Tokens a window.")] = 64,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 3e-4,
    warmup: Annotated[
        int | None, typer.Option(help="Steps of linear warm-up; a tenth of --steps unless given.")
    ] = None,
    eval_every: Annotated[int, typer.Option(help="Steps between evaluations; each saves a checkpoint.")] = 100,
    seed: Annotated[int, typer.Option(help="Parameters, batches and dropout follow from it.")] = 0,
    backend: Annotated[str, typer.Option(help="torch, or numpy: the specification itself, slower.")] = "torch",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, ...")] = "cpu",
    dtype: Annotated[
        str,
        typer.Option(
            help="float32 or float64; with torch also bfloat16: products in bfloat16, weights kept in float32."
        ),
    ] = "float32",
    compiled: Annotated[bool, typer.Option("--compile", help="Compile with torch.compile.")] = False,
    no_causal: Annotated[
        bool,
        typer.Option(
            "--no-causal",
            help="No causal mask, as in tutorial 001: the model sees the token that it should predict.",
        ),
    ] = False,
) -> None:
    """Train a preset on bytes: AdamW, warm-up then cosine, clipping at norm 1, dropout, a 90/10 split.

    It measures the loss on held-out text, and saves, before the first step, every --eval-every steps and at
    the end.

    Ctrl-C finishes the step, saves and exits with 130; pressed twice it stops at once and keeps the last
    checkpoint.

    --resume goes on from the last checkpoint of a run, however that ended. On the CPU, with as many threads and
    without --compile, the result is bit for bit that of a run that never stopped. It takes no other option but
    --data, to say where the data of the run are now.
    """
    with one_line_errors("train"):
        if (out is None) == (resume is None):
            which = "neither" if out is None else "both"
            raise Refusal(f"one of --out and --resume must be given, got {which}; give --out to begin a new run")
        if resume is not None:
            given = [name for name in context.params if _is_given(context, name) and name not in ("resume", "data")]
            if given:
                option = next(p.opts[0] for p in context.command.params if p.name == given[0])
                raise Refusal(f"a resumed run must keep its options, got --resume with {option}; leave {option} out")
            _resume(resume, data if _is_given(context, "data") else None)
        elif out is not None:
            if preset not in PRESETS:
                raise Refusal(f"--preset must be one of {', '.join(PRESETS)}, got {preset}; choose one of them")
            _check_backend(backend)
            if dtype not in RUN_DTYPES:
                raise Refusal(f"--dtype must be float32, float64 or bfloat16, got {dtype}; choose one of them")
            if backend == "numpy":
                for option, wrong in (
                    (f"--dtype {dtype}", dtype == "bfloat16"),
                    (f"--device {device}", device != "cpu"),
                    ("--compile", compiled),
                ):
                    if wrong:
                        raise Refusal(
                            f"--backend numpy must compute plainly, on the CPU in float32 or float64, got {option}; "
                            f"leave it out"
                        )
            with refusing():
                recipe = Recipe(
                    steps=steps, batch=batch, seq=seq, lr=lr, eval_every=eval_every, seed=seed,
                    warmup=max(steps, 0) // 10 if warmup is None else warmup,
                )  # fmt: skip
            max_len = PRESETS[preset].max_len
            if seq > max_len:
                raise Refusal(f"--seq must be at most the preset's max_len, got {seq} and {max_len}; lower --seq")
            if os.path.lexists(out):
                raise Refusal(f"--out must not exist yet, got {out}; choose another name, or remove it first")

            training, validation, sha256 = _data(data, recipe, "give a file that can be read, builtin or random")
            run = RunOptions(
                backend=backend, data=data, data_sha256=sha256, dtype=dtype, device=device, compiled=compiled
            )
            start = _initial(preset, recipe, run, causal=not no_causal)
            trainer = _trainer(start, recipe, run, fix="give cpu or another")
            with Interrupts() as interrupts, RunFolder(out) as folder:
                _go_on(start, recipe, trainer, training, validation, folder, interrupts)


def _check_backend(backend: str) -> None:
    if backend not in BACKENDS:
        raise Refusal(f"--backend must be {' or '.join(BACKENDS)}, got {backend}; choose one of them")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _data(source: str, recipe: Recipe, fix: str) -> tuple[Dataset, Dataset, str]:
    """Read the training and the validation data, and what is their digest."""
    with refusing(f"reading --data {source}", fix):
        training, validation = datasets(source, seq=recipe.seq, batch_size=recipe.batch, seed=recipe.seed)
        return training, validation, digest(training, validation)


def _initial(preset: str, recipe: Recipe, run: RunOptions, *, causal: bool) -> Checkpoint:
    """Give what a run begins with."""
    config = replace(PRESETS[preset], vocab=VOCAB, causal=causal)
    params = init_params(config, seed=recipe.seed, dtype=_stored_dtype(run))
    zeros = map_tree(np.zeros_like, params)
    moments = Moments(step=0, m=zeros, v=zeros)
    return Checkpoint(config=config, params=params, step=0, recipe=recipe, moments=moments, run=run)


def _resume(path: Path, data: str | None) -> None:
    """Go on from the checkpoint in a run's folder."""
    if not path.is_dir():
        raise Refusal(f"--resume must be the folder of a run, got {path}; give a folder that train wrote")
    if not os.path.lexists(path / CHECKPOINT):
        raise Refusal(
            f"--resume must be a folder with a checkpoint, got {path} without {CHECKPOINT}; "
            f"begin again with --out, for this run was stopped before its first one"
        )
    with RunFolder(path, resumed=True) as folder:
        with refusing(f"reading --resume {path}", "give a folder that train wrote"):
            start = load_checkpoint(path / CHECKPOINT)
        recipe, run = start.recipe, start.run
        if recipe is None or run is None or start.moments is None:
            raise Refusal(
                f"a checkpoint must have recipe, options and the optimizer's moments to go on, "
                f"got {path / CHECKPOINT} without; train again, or use it for generate and plot alone"
            )
        dtypes = {leaf.dtype.name for _, leaf in leaves(start.params)}
        for fits, what in (
            (start.step <= recipe.steps, f"step {start.step} of {recipe.steps}"),
            (recipe.seq <= start.config.max_len, f"seq {recipe.seq} with max_len {start.config.max_len}"),
            (start.config.vocab == VOCAB, f"vocab {start.config.vocab} for bytes"),
            (dtypes == {_stored_dtype(run)}, f"dtype {run.dtype} with parameters of {', '.join(dtypes)}"),
        ):
            if not fits:
                raise Refusal(f"a run must fit its own options, got {what}; train again")
        source = run.data if data is None else data
        training, validation, sha256 = _data(source, recipe, "say with --data where the data of the run are now")
        if sha256 != run.data_sha256:
            own = "with the Python that it began with" if source == "builtin" else f"with --data as {run.data} was"
            raise Refusal(f"a run must go on with its own data, got other bytes in {source}; resume {own}")
        trainer = _trainer(start, recipe, run, fix="resume on a machine that has it")
        folder.go_back_to(start.step)
        if start.step == recipe.steps and folder.evaluated:
            typer.echo(f"the run is finished: step {start.step}/{recipe.steps} is saved in {path / CHECKPOINT}")
            return
        with Interrupts() as interrupts:
            _go_on(start, recipe, trainer, training, validation, folder, interrupts)


def _go_on(
    start: Checkpoint,
    recipe: Recipe,
    trainer: Trainer,
    training: Dataset,
    validation: Dataset,
    folder: RunFolder,
    interrupts: Interrupts,
) -> None:
    """Train from `start` to the recipe's end."""

    def latest() -> tuple[Tree, Moments]:
        assert start.moments is not None  # those who call _go_on have seen to it
        return start.params, start.moments

    done, tokens, seconds, since = start.step, 0, 0.0, 0.0

    with Display(start.step, recipe.steps) as display:

        def kept() -> str:
            return "nothing was saved" if folder.saved_step is None else folder.kept

        def diverged(divergence: DivergenceError) -> Refusal:
            return Refusal(f"{str(divergence).partition(': ')[2]}; {kept()}", exit_code=1)

        def save(params: Tree, moments: Moments) -> None:
            if bad := next((name for name, leaf in leaves(params) if not np.isfinite(leaf).all()), None):
                raise diverged(DivergenceError(done, bad, "NaN or infinity"))
            with interrupts.shielded():
                folder.save(replace(start, params=params, step=done, moments=moments))

        def measure() -> None:
            nonlocal since
            params, moments = latest()
            result = trainer.evaluate(params, interrupts.watched(validation.evaluation()))
            if not math.isfinite(result.loss):
                raise diverged(DivergenceError(done, "validation loss", f"{result.loss}"))
            folder.log({"step": done, "validation_loss": result.loss, "perplexity": result.perplexity})
            save(params, moments)
            speed = tokens / seconds if seconds else 0.0
            left = (recipe.steps - done) * seconds / max(done - start.step, 1)
            display.evaluated(done, result.loss, result.perplexity, speed, left)
            since = time.perf_counter()

        def batches(step: int) -> Batch:
            interrupts.safe_point()
            return training.batch(step)

        def on_step(step: Step, snapshot: Snapshot) -> None:
            nonlocal latest, done, tokens, seconds, since
            now = time.perf_counter()
            latest, done, tokens, seconds, since = (
                snapshot, step.number, tokens + step.n_tokens, seconds + now - since, now,
            )  # fmt: skip
            speed = tokens / seconds
            folder.log(
                {
                    "step": done,
                    "loss": step.loss,
                    "lr": step.lr,
                    "grad_norm": step.grad_norm,
                    "tokens_per_second": speed,
                }
            )
            display.step(done, step.loss, speed)
            if done % recipe.eval_every == 0 or done == recipe.steps:
                measure()

        try:
            since = time.perf_counter()
            # A run that was stopped in an evaluation, or before the first, makes up for it.
            if not folder.evaluated and (done % recipe.eval_every == 0 or done == recipe.steps):
                measure()
            trainer.train(batches, on_step)
        except Stopped:
            save(*latest())
            raise KeyboardInterrupt(f"saved step {done} in {folder.path / CHECKPOINT}") from None
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"stopped at once; {kept()}") from None
        except DivergenceError as divergence:
            raise diverged(divergence) from divergence
        except (MemoryError, RuntimeError) as problem:
            reason = str(problem).strip().partition("\n")[0]
            if done == 0:
                folder.discard()
            if type(problem).__module__.startswith(("torch._dynamo", "torch._inductor")):
                fix = "resume where it works" if folder.resumed else "leave it out"
                raise Refusal(f"--compile must work here, got {reason}; {fix}") from problem
            if isinstance(problem, MemoryError) or "memory" in reason.lower():
                fix = "free memory" if folder.resumed else "lower --batch or --seq"
                raise Refusal(f"a step must fit in memory, got {reason}; {fix}") from problem
            raise
    typer.echo(f"saved step {done} in {folder.path / CHECKPOINT}")


# generate


@app.command()
def generate(
    checkpoint: Annotated[Path, typer.Option(help="Folder that train wrote.")],
    prompt: Annotated[str, typer.Option(help="Text to continue; it is printed first.")],
    max_new_tokens: Annotated[int, typer.Option(help="Bytes to write.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest byte.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Draw among the k likeliest.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw among the fewest that have mass p.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 0,
    backend: Annotated[
        str, typer.Option(help="torch, or numpy: without PyTorch. Either continues what either has trained.")
    ] = "torch",
) -> None:
    """Let a checkpoint continue a prompt, byte by byte; what does not print is shown escaped."""
    with one_line_errors("generate"):
        if seed < 0:
            raise Refusal(f"--seed must be at least 0, got {seed}; give 0 or more")
        _check_backend(backend)
        found = _checkpoint(checkpoint)
        if found.config.vocab > 256:
            raise Refusal(
                f"tokens must be bytes, got a checkpoint with vocab {found.config.vocab}; use its own decoder"
            )
        ids = os.fsencode(prompt)  # the very bytes of the command line, whatever its encoding
        options: dict[str, Any] = {
            "max_new_tokens": max_new_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed,
        }  # fmt: skip
        with refusing(fix="see transformer-spec generate --help"):
            new_ids = (_numpy_ids if backend == "numpy" else _torch_ids)(found, list(ids), options)
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        try:
            _write(decoder.decode(ids))
            for new_id in new_ids:
                _write(decoder.decode(bytes([new_id])))
            _write(decoder.decode(b"", final=True))
        finally:
            _write("\n")


def _write(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(printable(text).encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


def _checkpoint(path: Path) -> Checkpoint:
    with refusing(f"reading --checkpoint {path}", "give a folder that train wrote"):
        return load_checkpoint(path)


def _numpy_ids(found: Checkpoint, ids: list[int], options: dict[str, Any]) -> Iterator[int]:
    from reference.numpy.generation import generate

    return generate(ids, found.params, found.config, **options)


def _torch_ids(found: Checkpoint, ids: list[int], options: dict[str, Any]) -> Iterator[int]:
    from reference.torch.generation import generate

    return generate(_model(found), ids, **options)


# plot


@app.command()
def plot(
    what: Annotated[str, typer.Argument(help="positions: the position table. attention: who looks at whom.")],
    out: Annotated[Path, typer.Option(help="SVG file to write. Must not exist.")],
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Folder that train wrote; attention needs one, positions shows its own."),
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Text to look at; attention needs one.")] = None,
) -> None:
    """Draw the position table (of MINI, or of a checkpoint), or a checkpoint's attention on a prompt."""
    with one_line_errors("plot"):
        if what not in ("positions", "attention"):
            raise Refusal(f"what to plot must be positions or attention, got {what}; choose one of them")
        if out.suffix != ".svg":
            raise Refusal(f"--out must end in .svg, got {out}; give such a name")
        if os.path.lexists(out):
            raise Refusal(f"--out must not exist yet, got {out}; choose another name, or remove it first")
        found = None if checkpoint is None else _checkpoint(checkpoint)

        from reference import plots

        try:
            with refusing():
                if what == "positions":
                    svg = plots.positions_svg(found.config if found else PRESETS["mini"], found and found.params)
                elif found and prompt:
                    svg = plots.attention_svg(list(os.fsencode(prompt)), found.params, found.config)
                else:
                    raise Refusal("attention must have --checkpoint and --prompt, got one or none; give both")
        except ModuleNotFoundError as missing:
            raise Refusal(
                f"matplotlib must be installed, got {missing}; pip install 'transformer-spec[plots]'"
            ) from missing
        with refusing(f"writing {out}", "choose another --out, or free the disk"):
            write_whole(out, [svg])
        typer.echo(f"wrote {out}")


if __name__ == "__main__":
    app()
