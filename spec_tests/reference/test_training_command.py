"""`transformer-spec train` from end to end, and the functions under it."""

import errno
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from reference import checkpoint, cli
from reference import torch as backend
from reference.checkpoint import CHECKPOINT, load_checkpoint
from reference.config import MINI, TINY, ModelConfig
from reference.data import IGNORED, Batch, TextWindows, byte_tokens, generator
from reference.parameters import init_params, leaves
from reference.recipe import Recipe, from_json, to_json
from reference.torch import training

SMALL = ModelConfig(vocab=7, d_model=4, n_heads=2, n_layers=2, d_ff=6, max_len=9)
FEW = ("--preset", "tiny", "--steps", "6", "--batch", "4", "--seq", "8", "--eval-every", "3")


pytestmark = pytest.mark.usefixtures("ctrl_c")


def run(*arguments: object) -> Any:
    """Run a command in this process."""
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def metrics(out: Path) -> list[dict[str, Any]]:
    """Read the lines of metrics.jsonl without those numbers that depend on the clock."""
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "tokens_per_second"} for line in lines]


def one_line(result: Any, exit_code: int, command: str = "train") -> str:
    """Hold a result to be a refusal: its exit code, and one line with invariant, what came, and the fix."""
    assert result.exit_code == exit_code, result.output
    assert re.fullmatch(rf"transformer-spec {command}: [^\n]+, got [^\n]+; [^\n]+\n", result.stderr), result.stderr
    return result.stderr


def model_of(config: ModelConfig, dtype: torch.dtype = torch.float64, seed: int = 0) -> backend.Transformer:
    """Build a model with the neutral initial parameters."""
    model = backend.Transformer(config, dtype=dtype)
    backend.load_params(model, init_params(config, seed=seed))
    return model


def batches_of(config: ModelConfig, shape: tuple[int, int] = (3, 5)) -> Callable[[int], Batch]:
    """Give random batches for a config."""

    def batch(step: int) -> Batch:
        tokens = generator(1, "data", step).integers(0, config.vocab, size=(shape[0], shape[1] + 1))
        return tokens[:, :-1], tokens[:, 1:]

    return batch


def losses_of(
    model: backend.Transformer, batches: Callable[[int], Batch], recipe: Recipe, **options: Any
) -> list[float]:
    """Train, and give the loss of each step."""
    losses: list[float] = []
    training.train(model, batches, recipe, on_step=lambda step, _: losses.append(step.loss), **options)
    return losses


# The command


def test_a_run_from_end_to_end(tmp_path: Path, text: Path) -> None:
    """A run leaves a checkpoint, with config and recipe, and a line of metrics for each step and evaluation."""
    out = tmp_path / "runs" / "one"
    result = run("train", *FEW, "--data", text, "--out", out)
    assert result.exit_code == 0, result.output
    assert sorted(os.listdir(out)) == ["metrics.jsonl", CHECKPOINT]
    found = load_checkpoint(out)
    assert found.config == replace(TINY, vocab=256, causal=True)
    assert found.step == 6
    assert found.recipe == Recipe(steps=6, batch=4, seq=8, eval_every=3)
    records = metrics(out)
    assert [(r["step"], "validation_loss" in r) for r in records] == [
        (0, True), (1, False), (2, False), (3, False), (3, True), (4, False), (5, False), (6, False), (6, True),
    ]  # fmt: skip
    assert set(records[1]) == {"step", "loss", "lr", "grad_norm"}
    assert records[-1]["perplexity"] == pytest.approx(math.exp(records[-1]["validation_loss"]))
    lines = result.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines[:-1]] == ["step 0/6", "step 3/6", "step 6/6"]
    assert lines[-1] == f"saved step 6 in {out / CHECKPOINT}"
    assert "\x1b" not in result.output


def test_the_validation_loss_falls(tmp_path: Path, text: Path) -> None:
    """Training on a text lowers the loss on the part of it that was held out."""
    run("train", *FEW[:2], "--steps", 60, "--lr", "1e-2", "--data", text, "--out", tmp_path / "a", *FEW[4:8])
    losses = [r["validation_loss"] for r in metrics(tmp_path / "a") if "validation_loss" in r]
    assert losses[0] == pytest.approx(math.log(256), abs=0.1)
    assert losses[-1] < losses[0] - 1


def test_the_seed_decides(tmp_path: Path, text: Path) -> None:
    """Equal commands write equal bytes and metrics; another seed gives another run."""
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert run("train", *FEW, "--data", text, "--seed", seed, "--out", tmp_path / name).exit_code == 0
    assert (tmp_path / "a" / CHECKPOINT).read_bytes() == (tmp_path / "b" / CHECKPOINT).read_bytes()
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")
    assert metrics(tmp_path / "a") != metrics(tmp_path / "c")


def test_choices_of_the_command(tmp_path: Path, text: Path) -> None:
    """--no-causal and --data random are the tutorial's own experiment; --warmup and --lr reach the recipe."""
    result = run(
        "train", "--preset", "tiny", "--steps", 2, "--data", "random", "--no-causal", "--out", tmp_path / "a",
        "--warmup", 1, "--lr", 0.25, "--seq", 12,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = load_checkpoint(tmp_path / "a")
    assert not found.config.causal
    assert found.recipe == Recipe(steps=2, warmup=1, lr=0.25, seq=12)
    assert [r["lr"] for r in metrics(tmp_path / "a") if "lr" in r] == [0.25, 0.0]


def test_bfloat16_keeps_float32_weights(tmp_path: Path, text: Path) -> None:
    """In bfloat16 the weights that are stored are float32, and the first loss is that of float32 to a few digits."""
    for name in ("float32", "bfloat16"):
        result = run("train", *FEW, "--data", text, "--dtype", name, "--out", tmp_path / name)
        assert result.exit_code == 0, result.output
    full, half = metrics(tmp_path / "float32"), metrics(tmp_path / "bfloat16")
    assert full[1]["loss"] != half[1]["loss"]
    assert full[1]["loss"] == pytest.approx(half[1]["loss"], abs=0.05)
    for _, leaf in leaves(load_checkpoint(tmp_path / "bfloat16").params):
        assert leaf.dtype == np.float32
        assert np.any(leaf.view(np.uint32) & 0xFFFF)  # more digits than bfloat16 has


def test_a_live_bar_on_a_terminal(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal a bar shows step, loss, validation loss, perplexity, tokens/s and the time left."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    result = run("train", *FEW, "--data", text, "--out", tmp_path / "a")
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", result.stdout)
    assert re.search(r"step 6/6 ━+ loss \d\.\d+ +val loss \d\.\d+ +ppl \d+\.\d+ +[\d,]+ tokens/s +0:00:00", shown)


# Refusals


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--steps", "0"], "steps must be a whole number of at least 1, got 0"),
        (["--steps", "-3"], "steps must be"),
        (["--batch", "0"], "batch must be"),
        (["--seq", "0"], "seq must be"),
        (["--seq", "65"], "--seq must be at most the preset's max_len, got 65 and 64"),
        (["--lr", "0"], "lr must be positive and finite, got 0.0"),
        (["--lr", "-1"], "lr must be positive"),
        (["--lr", "nan"], "lr must be positive"),
        (["--lr", "inf"], "lr must be positive"),
        (["--warmup", "7"], "warmup must be at most steps, got 7 and 6"),
        (["--warmup", "-1"], "warmup must be"),
        (["--eval-every", "0"], "eval_every must be"),
        (["--seed", "-1"], "seed must be"),
        (["--preset", "huge"], "--preset must be one of tiny, mini, got huge"),
        (["--dtype", "float16"], "--dtype must be float32, float64 or bfloat16, got float16"),
        (["--device", "warp"], "--device must be there and compute, got warp"),
        (["--device", "cuda:99"], "--device must be there and compute, got cuda:99"),
        (["--device", "meta"], "--device must be there and compute, got meta"),
        (["--device", ""], "--device must be there"),
        (["--data", "/none/here"], "reading --data /none/here must be possible, got No such file or directory"),
        (["--data", "/dev/null"], "data must be a regular file, got /dev/null"),
        (["--data", "{data}"], "data must be a regular file"),
        (["--data", "{empty}"], "got 0 bytes in all; give at least 81 bytes"),
        (["--data", "{short}"], "got 80 bytes in all; give at least 81 bytes"),
        (["--out", "{data}"], "--out must not exist yet"),
        (["--out", "{text}"], "--out must not exist yet"),
        (["--out", "{link}"], "--out must not exist yet"),
        (["--out", "{text}/run"], "must be possible, got Not a directory"),
        (["--out", "/proc/none/run"], "must be possible, got"),
        (["--out", "new\x1b[31m\nfolder/" + "x" * 300], "must be possible, got File name too long"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(tmp_path: Path, text: Path, options: list[str], reason: str) -> None:
    """What cannot be trained is refused in one line with exit code 2, and nothing is made or changed."""
    data = text.parent
    (data / "empty").write_bytes(b"")
    (data / "short").write_bytes(b"x" * 80)
    (data / "link").symlink_to(data / "nowhere")
    names = {name: data / name for name in ("empty", "short", "link", "text")} | {"data": data}
    before = sorted(tmp_path.rglob("*"))
    given_options = [option.format(**names) for option in options]
    base = [*FEW, "--data", str(text), "--out", str(tmp_path / "runs" / "new")]
    with_cwd = CliRunner()
    folder = os.getcwd()
    os.chdir(tmp_path)
    try:
        result = with_cwd.invoke(cli.app, ["train", *base, *given_options])
    finally:
        os.chdir(folder)
    assert reason in one_line(result, 2)
    assert "\x1b" not in result.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["token_embedding", "loss"])
def test_divergence_keeps_the_last_good_checkpoint(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Where a loss or gradient is NaN the run stops with step, name and exit code 1; the last checkpoint stays."""
    whole = training._loss
    calls = 0

    def broken(model: Any, ids: Any, targets: Any, autocast: Any, keep: Any = None) -> Any:
        nonlocal calls
        calls += model.training
        loss = whole(model, ids, targets, autocast, keep)
        if calls < 5 or not model.training:
            return loss
        table = model.token_embedding.table
        # Its value is 0 and its gradient 0 * inf; or it is NaN itself.
        return loss + (table[3, 2] * 0 + 1e-300).sqrt().sum() * 0 if name != "loss" else loss * math.nan

    monkeypatch.setattr(training, "_loss", broken)
    result = run("train", *FEW, "--data", text, "--out", tmp_path / "a")
    message = one_line(result, 1)
    assert "at step 5;" in message
    assert f"in {name}" in message
    assert f"the checkpoint of step 3 is kept in {tmp_path / 'a' / CHECKPOINT}" in message
    assert load_checkpoint(tmp_path / "a").step == 3


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_an_absurd_rate_stops_with_a_name(tmp_path: Path, text: Path, backend: str) -> None:
    """A learning rate that blows the model up ends with exit code 1 and a checkpoint of finite numbers."""
    result = run("train", *FEW, "--data", text, "--lr", "1e38", "--backend", backend, "--out", tmp_path / "a")
    message = one_line(result, 1)
    assert re.search(r"got .+ in \S+( \S+)? at step \d; lower lr", message)
    assert load_checkpoint(tmp_path / "a").step < 6


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate"), "a step must fit in memory"),
        (MemoryError("Unable to allocate 9 TiB"), "a step must fit in memory"),
        (torch._dynamo.exc.TorchRuntimeError("no compiler"), "--compile must work here, got no compiler"),
    ],
)
def test_a_step_that_cannot_be_made(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    """A first step that does not fit in memory, or cannot be compiled, is one line with exit code 2; nothing stays."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(training, "warmup_cosine", fail)
    assert reason in one_line(run("train", *FEW, "--data", text, "--out", tmp_path / "runs" / "a"), 2)
    assert os.listdir(tmp_path) == ["data"]


def full_disk(*_: object) -> None:
    """Fail as a full disk does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("at", range(1, 10))
def test_a_full_disk(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """A disk that fills up at a checkpoint ends in one line and exit code 2; the one before it stays, or nothing."""
    fsync, calls = os.fsync, 0

    def sometimes_full(fd: int) -> None:
        nonlocal calls
        calls += 1
        full_disk() if calls == at else fsync(fd)

    monkeypatch.setattr(os, "fsync", sometimes_full)
    message = one_line(run("train", *FEW, "--data", text, "--out", tmp_path / "runs" / "a"), 2)
    assert "No space left on device; free the disk or choose another --out" in message
    if at <= 3:
        assert os.listdir(tmp_path) == ["data"]
    else:
        # A save syncs metrics, checkpoint and folder; the folder fails when the new checkpoint has its name.
        kept = 0 if at <= 6 else 3
        assert f"the checkpoint of step {kept} is kept" in message
        kept += 3 * (at % 3 == 0)
        assert sorted(os.listdir(tmp_path / "runs" / "a")) == ["metrics.jsonl", CHECKPOINT]
        assert load_checkpoint(tmp_path / "runs" / "a").step == kept


def limited(bytes_a_file: int) -> Callable[[], None]:
    """Let a process write files of no more than some bytes: a disk that is truly full."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_a_file, bytes_a_file))

    return limit


def test_a_disk_that_is_truly_full(tmp_path: Path, text: Path) -> None:
    """A process that may not write the whole checkpoint says so in one line, exits with 2 and leaves nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "reference.cli", "train", *FEW, "--data", text, "--out", tmp_path / "runs" / "a"],
        capture_output=True, text=True, preexec_fn=limited(20_000), check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert re.fullmatch(r"transformer-spec train: writing \S+ must be possible, got File too large; .+\n", done.stderr)
    assert os.listdir(tmp_path) == ["data"]


def test_metrics_have_whole_lines_only(tmp_path: Path) -> None:
    """A line of metrics that does not fit on the disk is taken back whole, and those before it stay."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with cli.RunFolder(tmp_path / "a") as folder:
        folder.saved_step = 0
        folder.log({"step": 0, "loss": math.inf})
        resource.setrlimit(resource.RLIMIT_FSIZE, (50, before[1]))
        try:
            with pytest.raises(cli.Refusal, match="File too large"):
                folder.log({"step": 1, "loss": 1 / 3, "lr": 1 / 7})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    lines = (tmp_path / "a" / "metrics.jsonl").read_text()
    assert lines == '{"step": 0, "loss": null}\n'


# Ctrl-C


def press(times: int = 1) -> None:
    """Press Ctrl-C."""
    for _ in range(times):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("where", "name", "call", "step"),
    [
        (TextWindows, "evaluation", 1, 0),  # before the first checkpoint
        (TextWindows, "evaluation", 2, 3),
        (TextWindows, "batch", 2, 2),
        (training, "_loss", 6, None),  # in an evaluation or in the middle of a step
        (training, "clip_grad_norm", 4, 4),
        (os, "fsync", 1, 0),  # while a checkpoint is being written
        (Path, "replace", 2, 3),
    ],
)  # fmt: skip
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_at_an_awkward_moment(
    tmp_path: Path,
    text: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: Any,
    name: str,
    call: int,
    step: int | None,
    times: int,
) -> None:
    """Ctrl-C, whenever it comes, ends with 130 and whole files: once saves the last step, twice is obeyed at once.

    While a file is written, even the second waits.
    """
    whole, calls = getattr(where, name), 0

    def pressed(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            press(times)
        return whole(*arguments, **options)

    monkeypatch.setattr(where, name, pressed)
    out = tmp_path / "runs" / "a"
    result = run("train", *FEW, "--data", text, "--out", out)
    assert result.exit_code == 130, result.output
    assert re.fullmatch(r"transformer-spec train: interrupted: [^\n]+\n", result.stderr)
    writing = where in (os, Path)
    if times == 1 or writing:
        found = load_checkpoint(out)
        assert found.step == step or step is None
        assert f"saved step {found.step} in {out / CHECKPOINT}" in result.stderr
        assert sum("loss" in record for record in metrics(out)) == found.step
    elif (where, call) == (TextWindows, 1):
        assert "stopped at once; nothing was saved" in result.stderr
        assert os.listdir(tmp_path) == ["data"]
    else:
        assert re.search(r"stopped at once; the checkpoint of step \d is kept", result.stderr)
        load_checkpoint(out)
    if out.exists():
        assert sorted(os.listdir(out)) == ["metrics.jsonl", CHECKPOINT]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_evaluation_stops_at_its_next_batch() -> None:
    """Ctrl-C in an evaluation does not wait for its end, however long the held-out text is."""
    with cli.Interrupts() as interrupts:
        batches = interrupts.watched(range(9))
        assert [next(batches), next(batches)] == [0, 1]
        press()
        with pytest.raises(cli.Stopped):
            next(batches)


def test_ctrl_c_from_outside(tmp_path: Path, text: Path) -> None:
    """A process that gets SIGINT while it trains saves, says where, and exits with 130."""
    out = tmp_path / "a"
    process = subprocess.Popen(
        [sys.executable, "-m", "reference.cli", "train", "--preset", "tiny", "--steps", "1000000", "--data", text,
         "--seq", "8", "--batch", "4", "--out", out],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        for _ in range(1200):
            if (out / "metrics.jsonl").exists() and (out / "metrics.jsonl").stat().st_size > 300:
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    found = load_checkpoint(out)
    assert found.step >= 1
    assert errors == f"transformer-spec train: interrupted: saved step {found.step} in {out / CHECKPOINT}\n"


# The functions


def test_training_is_adamw_as_specified() -> None:
    """Each step is clip_grad_norm, warmup_cosine and adamw_step, where only matrices and tables decay."""
    config = replace(SMALL, attention_bias=True)
    recipe = Recipe(steps=7, lr=0.03, min_lr=0.001, warmup=3, weight_decay=0.5, clip_norm=0.3)
    batches = batches_of(config)
    model = model_of(config)
    for p in model.parameters():
        p.grad = torch.ones_like(p)  # left over from something else
    steps: list[training.Step] = []
    training.train(model, batches, recipe, on_step=lambda step, _: steps.append(step))

    by_hand = model_of(config)
    moments: dict[str, tuple[Any, Any]] = {}
    for k in range(recipe.steps):
        ids, targets = (torch.from_numpy(array) for array in batches(k))
        loss = backend.cross_entropy(by_hand(ids), targets)
        by_hand.zero_grad()
        loss.backward()
        grads = {name: p.grad for name, p in by_hand.named_parameters()}
        grads, norm = backend.clip_grad_norm(grads, max_norm=0.3)
        lr = float(backend.warmup_cosine(k, warmup=3, total=7, max_lr=0.03, min_lr=0.001))
        assert steps[k].number == k + 1
        assert steps[k].lr == lr
        assert steps[k].n_tokens == 15
        assert steps[k].loss == pytest.approx(loss.item(), abs=1e-12)
        assert steps[k].grad_norm == pytest.approx(float(norm), abs=1e-12)
        assert norm > 0.3  # so that clipping shows
        with torch.no_grad():
            for name, p in by_hand.named_parameters():
                m, v = moments.get(name, (torch.zeros_like(p), torch.zeros_like(p)))
                decay = 0.5 if p.ndim == 2 else 0.0
                new, m, v = backend.adamw_step(p, grads[name], m, v, step=k + 1, lr=lr, weight_decay=decay)
                moments[name] = m, v
                p.copy_(new)
    for (name, trained), (_, expected) in zip(model.named_parameters(), by_hand.named_parameters(), strict=True):
        torch.testing.assert_close(trained, expected, rtol=0, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}")


def test_no_clipping_is_no_clipping() -> None:
    """Without clip_norm the steps are those of a clip_norm that is never reached."""
    states = []
    for clip_norm in (None, 1e9, 1e-3):
        model = model_of(SMALL)
        training.train(model, batches_of(SMALL), Recipe(steps=3, clip_norm=clip_norm))
        states.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)
    assert not torch.equal(states[0], states[2])


def test_training_leaves_the_world_as_it_was() -> None:
    """Training puts the model's modes and torch's generator back, and its dropout does not depend on either."""
    config = replace(SMALL, dropout=0.5)
    results = []
    for outside in (1, 2):
        model = model_of(config)
        torch.manual_seed(outside)
        state = torch.get_rng_state()
        model.eval()
        model.blocks[1].train()
        modes = [part.training for part in model.modules()]
        losses = losses_of(model, batches_of(config), Recipe(steps=3, seed=4))
        assert [part.training for part in model.modules()] == modes
        assert torch.equal(torch.get_rng_state(), state)
        results.append(losses)
    assert results[0] == results[1]
    plain = losses_of(model_of(SMALL), batches_of(SMALL), Recipe(steps=3, seed=4))
    assert plain[0] != results[0][0]  # so that dropout was there


def test_evaluation_is_without_dropout_and_restores_the_mode() -> None:
    """Evaluation is the same each time, has no gradient, and puts each part's mode back, after an error too."""
    config = replace(SMALL, dropout=0.5)
    model = model_of(config)
    model.train()
    model.blocks[0].eval()
    modes = [part.training for part in model.modules()]
    batches = [batches_of(config)(k) for k in range(3)]
    once = training.evaluate(model, batches)
    assert once == training.evaluate(model, batches)
    assert once.loss == pytest.approx(training.evaluate(model_of(SMALL), batches).loss, abs=1e-12)
    assert [part.training for part in model.modules()] == modes

    def failing() -> Iterator[Batch]:
        yield batches[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.evaluate(model, failing())
    assert [part.training for part in model.modules()] == modes
    assert all(p.grad is None for p in model.parameters())


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 4), st.integers(12, 60), st.integers(1, 5))
def test_evaluation_does_not_depend_on_the_batches(seq: int, length: int, batch_size: int) -> None:
    """The validation loss is the mean over the targets, however many windows a batch has."""
    model = model_of(SMALL)
    tokens = byte_tokens(bytes(i * i % 7 for i in range(length)))

    def loss(batch_size: int) -> training.Evaluation:
        windows = TextWindows(tokens=tokens, seq=seq, batch_size=batch_size, seed=0)
        return training.evaluate(model, windows.evaluation())

    one, several = loss(1), loss(batch_size)
    assert one.n_tokens == several.n_tokens == length - 1
    assert one.loss == pytest.approx(several.loss, abs=1e-12)
    assert one.perplexity == pytest.approx(math.exp(one.loss), rel=1e-12)


def test_batches_must_fit_the_model() -> None:
    """Ids or targets outside the vocab are an IndexError before the model sees them, no target a ValueError."""
    model = model_of(SMALL)
    good = np.zeros((2, 3), np.int64)
    for bad in (np.full((2, 3), 7), np.full((2, 3), -1)):
        for batch in ((bad, good), (good, bad)):
            with pytest.raises(IndexError, match=r"must lie in 0 \.\.\. 6, got"):
                training.train(model, lambda _, batch=batch: batch, Recipe(steps=1))
            with pytest.raises(IndexError, match=r"must lie in 0 \.\.\. 6, got"):
                training.evaluate(model, [batch])
    with pytest.raises(ValueError, match="n_tokens"):
        training.evaluate(model, [(good, np.full((2, 3), IGNORED))])


def test_a_step_that_diverges_changes_nothing() -> None:
    """Where a gradient is NaN, the parameters are those before the step, and the first such tensor is named."""
    model = model_of(SMALL)
    model.blocks[1].mlp.w_1.register_hook(lambda grad: grad * math.nan)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(training.DivergenceError, match=r"in blocks\.1\.mlp\.w_1 at step 1;") as caught:
        training.train(model, batches_of(SMALL), Recipe(steps=3))
    assert (caught.value.step, caught.value.name) == (1, "blocks.1.mlp.w_1")
    for p, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, old)


def test_a_nan_parameter_is_named() -> None:
    """Where the loss is NaN because a parameter is, that parameter is named."""
    model = model_of(SMALL)
    with torch.no_grad():
        model.blocks[0].attention.w_k[1, 2] = math.nan
    with pytest.raises(training.DivergenceError, match=r"got loss nan in blocks\.0\.attention\.w_k at step 1"):
        training.train(model, batches_of(SMALL), Recipe(steps=3))


COMPILED = """
import json
from functools import partial
import torch
from spec_tests.reference import test_training_command as tests

torch.compile = partial(torch.compile, backend="aot_eager")  # the whole path but the C++ compiler
config, recipe = tests.replace(tests.SMALL, n_layers=1), tests.Recipe(steps=3, lr=0.1)
model, batches = tests.model_of, tests.batches_of(config)
print(json.dumps([tests.losses_of(model(config), batches, recipe, compiled=c) for c in (True, False)]))
"""


def test_compiled_training_is_the_same_training() -> None:
    """The compiled step, one graph without a break, gives the losses of the plain one."""
    # In a process of its own, for shape checks and graphs exclude each other.
    environment = {name: value for name, value in os.environ.items() if name != "REFERENCE_SHAPE_CHECKS"}
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, env=environment, check=True)
    compiled, plain = json.loads(done.stdout)
    assert compiled == pytest.approx(plain, abs=1e-10)
    assert len(set(plain)) == 3


def test_the_recipe_survives_json() -> None:
    """A recipe comes back from its JSON; unknown, missing and ill-typed fields are a ValueError."""
    recipe = Recipe(steps=5, clip_norm=None, lr=0.1 + 0.2, warmup=2)
    assert from_json(json.loads(json.dumps(to_json(recipe)))) == recipe
    for wrong in ({}, {"steps": "5"}, {"steps": 5, "pace": 1}, {"steps": True}, {"steps": 5, "lr": None}):
        with pytest.raises(ValueError, match="Recipe: "):
            from_json(wrong)


def test_presets_train_causally_by_default() -> None:
    """The presets are the tutorials' own, without a mask; the command adds it."""
    assert not MINI.causal
    assert not TINY.causal
    assert checkpoint.CHECKPOINT == "model.safetensors"
