"""`transformer-spec generate` and `plot` from end to end, and the functions under them."""

import itertools
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from reference import cli, plots
from reference import torch as backend
from reference.checkpoint import CHECKPOINT, Checkpoint, save_checkpoint
from reference.config import MINI, TINY, LayerNorm, Learned, ModelConfig, NoPositions
from reference.data import sampling_uniforms
from reference.numpy import transformer
from reference.parameters import init_params, map_tree
from reference.torch.generation import generate

SMALL = ModelConfig(vocab=11, d_model=4, n_heads=2, n_layers=2, d_ff=6, max_len=5, positions=Learned(), dropout=0.5)


def model_of(config: ModelConfig = SMALL) -> backend.Transformer:
    """Build a model whose logits are far apart, so that a wrong context shows."""
    model = backend.Transformer(config, dtype=torch.float64)
    backend.load_params(model, map_tree(lambda leaf: 30 * leaf, init_params(config, seed=3)))
    return model


BYTES = replace(TINY, vocab=256, causal=True)


def saved(folder: Path, config: ModelConfig = BYTES) -> Path:
    """Save a model of random parameters."""
    folder.mkdir()
    params = map_tree(lambda leaf: 30 * leaf, init_params(config, seed=3))
    save_checkpoint(folder / CHECKPOINT, Checkpoint(config=config, params=params, step=0))
    return folder


def run(*arguments: object) -> Any:
    """Run a command in this process."""
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def one_line(result: Any, command: str) -> str:
    """Hold a result to be a refusal: exit code 2, and one line with invariant, what came, and the fix."""
    assert result.exit_code == 2, result.output
    assert re.fullmatch(rf"transformer-spec {command}: [^\n]+, got [^\n]+; [^\n]+\n", result.stderr), result.stderr
    return result.stderr


# The function

prompts = st.lists(st.integers(0, SMALL.vocab - 1), min_size=1, max_size=8)


@settings(deadline=None, max_examples=8)
@given(prompts, st.integers(0, 9))
def test_greedy_is_the_argmax_of_the_last_ids(prompt: list[int], count: int) -> None:
    """At temperature 0 each id is the argmax of what the model makes of the last max_len ids, past max_len too."""
    model = model_of().eval()
    expected = list(prompt)
    for _ in range(count):
        logits = model(torch.tensor(expected[-SMALL.max_len :]))[-1]
        expected.append(int(logits.argmax()))
    new = list(generate(model, prompt, max_new_tokens=count, temperature=0))
    assert prompt + new == expected


@settings(deadline=None, max_examples=20)
@given(prompts, st.integers(0, 2**64), st.integers(1, 11), st.floats(0.1, 1.0))
def test_ids_are_samples_of_the_distribution(prompt: list[int], seed: int, top_k: int, top_p: float) -> None:
    """Each id is `sample` of `next_token_distribution` with the next uniform number of the seed."""
    model = model_of().eval()
    options: dict[str, Any] = {"temperature": 20.0, "top_k": top_k, "top_p": top_p}
    new = list(generate(model, prompt, max_new_tokens=4, seed=seed, **options))
    context = list(prompt)
    for drawn, uniform in zip(new, sampling_uniforms(seed), strict=False):
        logits = model(torch.tensor([context[-SMALL.max_len :]]))[0, -1].detach()
        p = backend.next_token_distribution(logits, **options)
        assert drawn == int(backend.sample(p, torch.tensor(uniform, dtype=torch.float64)))
        context.append(drawn)
    uniforms = itertools.islice(sampling_uniforms(seed), 4)
    assert new == list(generate(model, prompt, max_new_tokens=4, uniforms=uniforms, seed=0, **options))


def test_the_same_seed_gives_the_same_ids() -> None:
    """Ids depend on the seed, and on torch's own generator and dropout not at all."""
    model = model_of()
    runs: list[list[int]] = []
    for outside, seed in ((1, 5), (2, 5), (1, 6)):
        torch.manual_seed(outside)
        runs.append(list(generate(model, [1], max_new_tokens=40, temperature=20.0, seed=seed)))
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_the_mode_is_put_back() -> None:
    """Whenever an id has been handed out, and when generation is abandoned, each part has the mode that it had."""
    model = model_of()
    model.train()
    model.blocks[1].eval()
    modes = [part.training for part in model.modules()]
    assert not all(modes)
    ids = generate(model, [1, 2], max_new_tokens=5)
    for _ in range(2):
        next(ids)
        assert [part.training for part in model.modules()] == modes
    ids.close()  # type: ignore[attr-defined]
    assert [part.training for part in model.modules()] == modes
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


@pytest.mark.parametrize(
    ("ids", "options", "error", "message"),
    [
        ([], {}, ValueError, "the prompt must hold at least one id, got none"),
        ([11], {}, IndexError, r"ids must lie in 0 \.\.\. 10, got 11"),
        ([-1], {}, IndexError, "got -1"),
        ([1], {"max_new_tokens": -1}, ValueError, "max_new_tokens must be at least 0, got -1"),
        ([1], {"temperature": -0.1}, ValueError, "temperature"),
        ([1], {"temperature": float("nan")}, ValueError, "temperature"),
        ([1], {"top_k": 0}, ValueError, "top_k"),
        ([1], {"top_p": 0.0}, ValueError, "top_p"),
        ([1], {"top_p": 1.1}, ValueError, "top_p"),
    ],
)
def test_wrong_arguments_are_refused_at_the_call(
    ids: list[int], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    """What cannot be generated from is refused when `generate` is called, before an id is asked for."""
    with pytest.raises(error, match=message):
        generate(model_of(), ids, **{"max_new_tokens": 1, **options})


def test_too_few_uniforms_are_refused() -> None:
    """Uniform numbers that end before the text are a ValueError after the ids that they sufficed for."""
    ids = generate(model_of(), [1], max_new_tokens=3, uniforms=[0.5, 0.5])
    next(ids)
    next(ids)
    with pytest.raises(ValueError, match="uniforms must be one for each new token"):
        next(ids)
    assert list(generate(model_of(), [1], max_new_tokens=0)) == []


# generate


def test_generate_prints_prompt_and_text(tmp_path: Path) -> None:
    """The prompt is followed by the text, the same for the same seed, and another for another."""
    folder = saved(tmp_path / "run")
    options = ("generate", "--checkpoint", folder, "--prompt", "naïve ", "--max-new-tokens", 30)
    first, again = run(*options, "--seed", 1), run(*options, "--seed", 1)
    assert first.exit_code == 0, first.output
    assert first.stdout.startswith("naïve ")
    assert first.stdout.endswith("\n")
    assert first.stdout == again.stdout
    assert first.stdout != run(*options, "--seed", 2).stdout
    file = run("generate", "--checkpoint", folder / CHECKPOINT, *options[3:], "--seed", 1)
    assert file.stdout == first.stdout
    assert run(*options, "--seed", 1, "--backend", "numpy").stdout == first.stdout


def test_temperature_0_needs_no_seed(tmp_path: Path) -> None:
    """Greedy text is the same for every seed."""
    options = ("generate", "--checkpoint", saved(tmp_path / "run"), "--prompt", "a", "--temperature", 0)
    assert run(*options, "--seed", 1).stdout == run(*options, "--seed", 2).stdout


class Script:
    """A model that says what it is told, whatever it reads."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    def __call__(self, *_: object, **__: object) -> Any:
        """Say it."""
        return iter(self.text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("é€😀 ok".encode(), "é€😀 ok"),  # characters of several bytes come out whole
        ("é".encode()[:1] + b"a", "\ufffda"),  # half a character
        ("😀".encode()[:3], "\ufffd"),  # half a character at the end
        (b"\x1b[31m\x07\x00\r", r"\x1b[31m\x07\x00\r"),  # nothing reaches the terminal but text
        ("\x9b\u202e\u200b".encode(), r"\x9b\u202e\u200b"),
        (b"a\n\tb", "a\n\tb"),
    ],
)
def test_bytes_are_shown_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, shown: str) -> None:
    """Bytes are decoded as UTF-8 as they come, and what does not print is escaped."""
    monkeypatch.setattr("reference.torch.generation.generate", Script(text))
    result = run("generate", "--checkpoint", saved(tmp_path / "run"), "--prompt", ">")
    assert result.stdout == f">{shown}\n"


def test_any_bytes_in_any_terminal(tmp_path: Path) -> None:
    """A prompt may be any bytes, and a terminal that knows ASCII only still gets the text, escaped."""
    done = subprocess.run(
        [sys.executable, "-m", "reference.cli", "generate", "--checkpoint", saved(tmp_path / "run"),
         "--prompt", b"\xff\xc3\xa9", "--max-new-tokens", "0"],
        capture_output=True, check=True, env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"},
    )  # fmt: skip
    assert done.stdout == b"\\ufffd\\xe9\n"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--prompt", ""], "the prompt must hold at least one id"),
        (["--max-new-tokens", "-1"], "max_new_tokens must be at least 0, got -1"),
        (["--temperature", "-1"], "temperature"),
        (["--temperature", "nan"], "temperature"),
        (["--top-k", "0"], "top_k"),
        (["--top-p", "0"], "top_p"),
        (["--top-p", "1.5"], "top_p"),
        (["--seed", "-1"], "--seed must be at least 0, got -1"),
        (["--backend", "jax"], "--backend must be torch or numpy, got jax"),
        (["--checkpoint", "{none}"], "reading --checkpoint"),
        (["--checkpoint", "{empty}"], "reading --checkpoint"),
        (["--checkpoint", "{text}"], "a checkpoint must be whole and of transformer-spec"),
        (["--checkpoint", "{cut}"], "a checkpoint must be whole and of transformer-spec"),
        (["--checkpoint", "{ten}"], "ids must lie in 0 ... 9, got 97"),
        (["--checkpoint", "{large}"], "tokens must be bytes, got a checkpoint with vocab 300"),
    ],
)
@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_what_cannot_be_continued_is_one_line(tmp_path: Path, backend: str, options: list[str], reason: str) -> None:
    """Wrong options, prompts and checkpoints are refused in one line with exit code 2, before any text."""
    good = saved(tmp_path / "run")
    saved(tmp_path / "ten", TINY)
    saved(tmp_path / "large", replace(TINY, vocab=300))
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no checkpoint at all, just some text")
    (tmp_path / "cut").write_bytes((good / CHECKPOINT).read_bytes()[:-1])
    names = {name: tmp_path / name for name in ("none", "empty", "text", "cut", "ten", "large")}
    command = ("generate", "--backend", backend, "--checkpoint", good, "--prompt", "a")
    result = run(*command, *(o.format(**names) for o in options))
    assert reason in one_line(result, "generate")
    assert result.stdout == ""


def test_a_file_of_any_size_can_claim_any_max_len(tmp_path: Path) -> None:
    """A model whose position table fits in no memory is refused where the table is made, and does no harm elsewhere."""
    folder = saved(tmp_path / "long", replace(BYTES, max_len=10**15))
    command = ("generate", "--checkpoint", folder, "--prompt", "a", "--max-new-tokens", 3)
    assert "the model must fit in memory, got" in one_line(run(*command), "generate")
    assert run(*command, "--backend", "numpy").exit_code == 0


def test_ctrl_c_ends_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends the line that has been written, and exits with 130."""

    def interrupted(*_: object, **__: object) -> Any:
        yield ord("x")
        raise KeyboardInterrupt

    monkeypatch.setattr("reference.torch.generation.generate", interrupted)
    result = run("generate", "--checkpoint", saved(tmp_path / "run"), "--prompt", "a")
    assert result.exit_code == 130
    assert result.stdout == "ax\n"
    assert result.stderr == "transformer-spec generate: interrupted\n"


# plot


@st.composite
def models(draw: st.DrawFn) -> ModelConfig:
    """Draw small models of all kinds."""
    return ModelConfig(
        vocab=7,
        d_model=6,
        n_heads=draw(st.sampled_from((1, 2, 3))),
        n_layers=draw(st.integers(0, 3)),
        d_ff=5,
        max_len=8,
        positions=draw(st.sampled_from((MINI.positions, Learned(), NoPositions()))),
        norm=draw(st.sampled_from((LayerNorm(eps=0.1), LayerNorm(affine=False, variant="std_plus_eps")))),
        norm_placement=draw(st.sampled_from(("pre", "post"))),
        final_norm=draw(st.booleans()),
        attention_bias=draw(st.booleans()),
        output_projection=draw(st.booleans()),
        causal=draw(st.booleans()),
        tied_head=draw(st.booleans()),
        head_bias=draw(st.booleans()),
        embedding_scale=draw(st.sampled_from((1.0, 3.0))),
    )


@settings(deadline=None, max_examples=15)
@given(models(), st.lists(st.integers(0, 6), min_size=1, max_size=8))
def test_attention_maps_are_the_models(config: ModelConfig, prompt: list[int]) -> None:
    """What is drawn follows the model: the stream ends in the model's logits, and each head's weights are its own."""
    generator = np.random.default_rng(0)
    params = map_tree(lambda leaf: generator.normal(size=leaf.shape), init_params(config, seed=0))
    ids = np.array(prompt)
    maps, logits = plots.attention_maps(ids, params, config)
    np.testing.assert_allclose(logits, transformer(ids, params, config), rtol=0, atol=1e-12)
    assert maps.shape == (config.n_layers, config.n_heads, len(ids), len(ids))
    np.testing.assert_allclose(maps.sum(-1), 1, rtol=0, atol=1e-12)
    if config.causal:
        assert (maps[..., ~np.tri(len(ids), dtype=bool)] == 0).all()
    # A query made 0 looks at all alike: the head that is silenced, and no other, becomes flat.
    if config.n_layers and not config.attention_bias:
        params["blocks"][0]["attention"]["w_q"][:, : config.d_k] = 0
        flat = plots.attention_maps(ids, params, config)[0][0]
        allowed = np.tri(len(ids)) if config.causal else np.ones((len(ids), len(ids)))
        np.testing.assert_allclose(flat[0], allowed / allowed.sum(-1, keepdims=True), rtol=0, atol=1e-12)
        np.testing.assert_array_equal(flat[1:], maps[0, 1:])


def test_plots_are_files_of_equal_bytes(tmp_path: Path) -> None:
    """The same picture is the same SVG, byte for byte, with a label a token and a panel a head."""
    folder = saved(tmp_path / "run", replace(MINI, d_model=8, n_heads=2, n_layers=3, d_ff=4, causal=True))
    for name in ("a", "b"):
        attention = run(
            "plot", "attention", "--checkpoint", folder, "--prompt", "a $x$_^{é}\n", "--out", tmp_path / f"{name}.svg"
        )
        assert attention.exit_code == 0, attention.output
        assert attention.stdout == f"wrote {tmp_path / name}.svg\n"
        assert run("plot", "positions", "--out", tmp_path / f"{name}-positions.svg").exit_code == 0
        learned = saved(tmp_path / f"learned-{name}", SMALL)
        run("plot", "positions", "--checkpoint", learned, "--out", tmp_path / f"{name}-learned.svg")
    for kind in ("", "-positions", "-learned"):
        one, two = ((tmp_path / f"{name}{kind}.svg").read_bytes() for name in ("a", "b"))
        assert one == two
        assert b"<svg" in one
        assert b"<dc:date>" not in one
    svg = (tmp_path / "a.svg").read_text()
    for layer, head in itertools.product(range(3), range(2)):
        assert f"<!-- layer {layer}, head {head} -->" in svg
    assert "<!-- c3 -->" in svg
    assert svg.count("<!-- $ -->") == 2 * (3 + 2)


def test_labels_of_bytes() -> None:
    """A byte that prints in ASCII is its own label, a space an open box, any other two hex digits."""
    assert [plots.token_label(b) for b in b"a$ \n\x00\xff~\x7f"] == ["a", "$", "␣", "0a", "00", "ff", "~", "7f"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["losses", "--out", "{new}"], "what to plot must be positions or attention, got losses"),
        (["positions", "--out", "{here}/a.png"], "--out must end in .svg"),
        (["positions", "--out", "{old}"], "--out must not exist yet"),
        (["positions", "--out", "{here}/none/a.svg"], "must be possible, got No such file or directory"),
        (["positions", "--out", "{new}", "--checkpoint", "{bag}"], "positions must be a table, got NoPositions()"),
        (["positions", "--out", "{new}", "--checkpoint", "{old}"], "a checkpoint must be whole"),
        (["attention", "--out", "{new}"], "attention must have --checkpoint and --prompt"),
        (["attention", "--out", "{new}", "--checkpoint", "{bag}"], "attention must have --checkpoint and --prompt"),
        (["attention", "--out", "{new}", "--checkpoint", "{bag}", "--prompt", ""], "attention must have"),
        (["attention", "--out", "{new}", "--checkpoint", "{bag}", "--prompt", "aaaaaa"], "1 ... 5 tokens"),
        (["attention", "--out", "{new}", "--checkpoint", "{small}", "--prompt", "a"], "token_embedding"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(tmp_path: Path, arguments: list[str], reason: str) -> None:
    """Wrong names, files and prompts are refused in one line with exit code 2, and no file is made or changed."""
    (tmp_path / "old.svg").write_text("old")
    saved(tmp_path / "bag", replace(SMALL, vocab=256, positions=NoPositions()))
    saved(tmp_path / "small", SMALL)
    names = {"new": "new.svg", "old": "old.svg", "here": ".", "bag": "bag", "small": "small"}
    before = sorted(tmp_path.rglob("*"))
    filled = [a.format(**{name: str(tmp_path / path) for name, path in names.items()}) for a in arguments]
    result = run("plot", *filled)
    if reason == "token_embedding":
        assert result.exit_code == 2
        assert "vocab" in result.stderr
    else:
        assert reason in one_line(result, "plot")
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "old.svg").read_text() == "old"


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where matplotlib is missing, one line says how to get it."""
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    message = one_line(run("plot", "positions", "--out", tmp_path / "a.svg"), "plot")
    assert "matplotlib must be installed" in message
    assert "pip install 'transformer-spec[plots]'" in message
