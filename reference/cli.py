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
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from reference.checkpoint import CHECKPOINT, Checkpoint, load_checkpoint, save_checkpoint, write_whole
from reference.config import PRESETS, ModelConfig
from reference.recipe import Recipe

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
    """A new folder that holds one run: `metrics.jsonl`, a line a step or evaluation, and `model.safetensors`.

    On leaving it without a checkpoint the folder is taken away again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.saved_step: int | None = None

    def __enter__(self) -> "RunFolder":
        self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            with self._writing(self.path):
                self.path.mkdir(parents=True)
                self._metrics = (self.path / "metrics.jsonl").open("wb", buffering=0)
        except BaseException:
            self._take_away()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._metrics.close()
        if self.saved_step is None:
            (self.path / "metrics.jsonl").unlink(missing_ok=True)
            self._take_away()

    def discard(self) -> None:
        """Give up the checkpoint, and with it the folder: the run has not begun."""
        (self.path / CHECKPOINT).unlink(missing_ok=True)
        self.saved_step = None

    def _take_away(self) -> None:
        for folder in self._made:
            with suppress(OSError):  # what was not made, or is no longer empty
                folder.rmdir()

    @contextmanager
    def _writing(self, path: Path) -> Generator[None, None, None]:
        kept = "" if self.saved_step is None else f" ({self.kept})"
        with refusing(f"writing {path}", f"free the disk or choose another --out{kept}"):
            yield

    @property
    def kept(self) -> str:
        """Say which checkpoint is there."""
        return f"the checkpoint of step {self.saved_step} is kept in {self.path / CHECKPOINT}"

    def log(self, record: dict[str, Any]) -> None:
        """Append one line of JSON, all of it or nothing; what is not finite is null."""
        finite = {key: value if math.isfinite(value) else None for key, value in record.items()}
        line = memoryview((json.dumps(finite) + "\n").encode())
        before = self._metrics.tell()
        with self._writing(self.path / "metrics.jsonl"):
            try:
                while line:
                    line = line[self._metrics.write(line) :]
            except BaseException:
                self._metrics.seek(before)
                self._metrics.truncate()
                raise

    def save(self, config: ModelConfig, params: Any, recipe: Recipe, step: int) -> None:
        """Replace the checkpoint."""
        with self._writing(self.path / CHECKPOINT):
            save_checkpoint(self.path / CHECKPOINT, Checkpoint(config=config, params=params, step=step, recipe=recipe))
        self.saved_step = step


# train


class Display:
    """A line an evaluation, and on a terminal a live bar under it."""

    def __init__(self, steps: int) -> None:
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
        self._task = self._bar.add_task("", total=steps, loss="-", validation="-", perplexity="-", speed="-")
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


def _device(name: str) -> Any:
    import torch

    try:
        device = torch.device(name)
        torch.ones(1, device=device).sum().item()  # a device may have a name and not be there; meta computes nothing
    except (RuntimeError, AssertionError, NotImplementedError) as problem:
        first = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        raise Refusal(f"--device must be there and compute, got {name} ({first}); give cpu or another") from problem
    return device


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="Folder to make: model.safetensors and metrics.jsonl. Must not exist.")],
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
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, ...")] = "cpu",
    dtype: Annotated[
        str, typer.Option(help="float32, or bfloat16: matrix products in bfloat16, weights kept in float32.")
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
    """
    with one_line_errors("train"):
        if preset not in PRESETS:
            raise Refusal(f"--preset must be one of {', '.join(PRESETS)}, got {preset}; choose one of them")
        if dtype not in ("float32", "bfloat16"):
            raise Refusal(f"--dtype must be float32 or bfloat16, got {dtype}; choose one of them")
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
        _train(preset, data, recipe, out, device, dtype, compiled=compiled, causal=not no_causal)


def _train(
    preset: str,
    data: str,
    recipe: Recipe,
    out: Path,
    device_name: str,
    dtype: str,
    *,
    compiled: bool,
    causal: bool,
) -> None:
    from reference.data import VOCAB, datasets

    with refusing(f"reading --data {data}", "give a file that can be read, builtin or random"):
        training, validation = datasets(data, seq=recipe.seq, batch_size=recipe.batch, seed=recipe.seed)

    import numpy as np
    import torch

    from reference import torch as backend
    from reference.data import Batch
    from reference.parameters import init_params, leaves
    from reference.torch.training import DivergenceError, Step, evaluate
    from reference.torch.training import train as train_model

    config = replace(PRESETS[preset], vocab=VOCAB, causal=causal)
    model = backend.Transformer(config, device=_device(device_name))
    backend.load_params(model, init_params(config, seed=recipe.seed, dtype=np.float32))
    autocast = torch.bfloat16 if dtype == "bfloat16" else None
    done, tokens, seconds, since = 0, 0, 0.0, 0.0

    with Interrupts() as interrupts, RunFolder(out) as folder, Display(recipe.steps) as display:

        def kept() -> str:
            return "nothing was saved" if folder.saved_step is None else folder.kept

        def diverged(divergence: DivergenceError) -> Refusal:
            return Refusal(f"{str(divergence).partition(': ')[2]}; {kept()}", exit_code=1)

        def save() -> None:
            params = backend.export_params(model)
            if bad := next((name for name, leaf in leaves(params) if not np.isfinite(leaf).all()), None):
                raise diverged(DivergenceError(done, bad, "NaN or infinity"))
            with interrupts.shielded():
                folder.save(config, params, recipe, done)

        def measure() -> None:
            nonlocal tokens, seconds, since
            result = evaluate(model, interrupts.watched(validation.evaluation()), autocast=autocast)
            if not math.isfinite(result.loss):
                raise diverged(DivergenceError(done, "validation loss", f"{result.loss}"))
            folder.log({"step": done, "validation_loss": result.loss, "perplexity": result.perplexity})
            save()
            speed = tokens / seconds if seconds else 0.0
            left = (recipe.steps - done) * seconds / max(done, 1)
            display.evaluated(done, result.loss, result.perplexity, speed, left)
            since = time.perf_counter()

        def batches(step: int) -> Batch:
            interrupts.safe_point()
            return training.batch(step)

        def on_step(step: Step) -> None:
            nonlocal done, tokens, seconds, since
            now = time.perf_counter()
            done, tokens, seconds, since = step.number, tokens + step.n_tokens, seconds + now - since, now
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
            measure()
            train_model(model, batches, recipe, on_step=on_step, autocast=autocast, compiled=compiled)
        except Stopped:
            save()
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
                raise Refusal(f"--compile must work here, got {reason}; leave it out") from problem
            if isinstance(problem, MemoryError) or "memory" in reason.lower():
                raise Refusal(f"a step must fit in memory, got {reason}; lower --batch or --seq") from problem
            raise
    typer.echo(f"saved step {done} in {out / CHECKPOINT}")


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
) -> None:
    """Let a checkpoint continue a prompt, byte by byte; what does not print is shown escaped."""
    with one_line_errors("generate"):
        if seed < 0:
            raise Refusal(f"--seed must be at least 0, got {seed}; give 0 or more")
        model = _load(checkpoint)
        if model.config.vocab > 256:
            raise Refusal(
                f"tokens must be bytes, got a checkpoint with vocab {model.config.vocab}; use its own decoder"
            )

        from reference.torch.generation import generate as generate_ids

        ids = os.fsencode(prompt)  # the very bytes of the command line, whatever its encoding
        with refusing(fix="see transformer-spec generate --help"):
            new_ids = generate_ids(
                model, list(ids), max_new_tokens=max_new_tokens, temperature=temperature,
                top_k=top_k, top_p=top_p, seed=seed,
            )  # fmt: skip
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


def _load(path: Path) -> Any:
    found = _checkpoint(path)
    from reference import torch as backend

    try:  # a file of any size can claim any max_len
        model = backend.Transformer(found.config)
    except (MemoryError, RuntimeError, OverflowError) as problem:
        reason = str(problem).partition("\n")[0]
        raise Refusal(f"the model must fit in memory, got {reason}; give another checkpoint") from problem
    backend.load_params(model, found.params)
    return model


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
