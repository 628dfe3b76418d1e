"""Bytes, windows, splits and the draws behind them."""

import subprocess
import sys
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import data
from reference.config import ModelConfig
from reference.data import IGNORED, ShuffledSequences, TextWindows
from reference.parameters import leaves, map_tree

texts = st.binary(min_size=2, max_size=200)


@st.composite
def text_windows(draw: st.DrawFn) -> TextWindows:
    """Draw windows over a short text."""
    text = draw(texts)
    seq = draw(st.integers(1, len(text) - 1))
    return TextWindows(
        tokens=data.byte_tokens(text),
        seq=seq,
        batch_size=draw(st.integers(1, 7)),
        seed=draw(st.integers(0, 2**64)),
    )


@settings(deadline=None)
@given(texts)
def test_bytes_are_the_tokens(text: bytes) -> None:
    """The tokens of a text are its bytes, and they give the text back."""
    tokens = data.byte_tokens(text)
    assert tokens.tolist() == list(text)
    assert tokens.astype(np.uint8).tobytes() == text


@settings(deadline=None)
@given(text_windows(), st.integers(0, 10**9))
def test_targets_follow_their_ids(windows: TextWindows, step: int) -> None:
    """Each row of a batch is a stretch of the text, and each target is the byte that follows its id."""
    ids, targets = windows.batch(step)
    assert ids.shape == targets.shape == (windows.batch_size, windows.seq)
    text = windows.tokens.tobytes()
    for row, following in zip(ids, targets, strict=True):
        stretch = bytes([*row.tolist(), int(following[-1])])
        assert stretch in text
        assert bytes(following.tolist()) == stretch[1:]


@settings(deadline=None)
@given(text_windows(), st.lists(st.integers(0, 50), min_size=1, max_size=5))
def test_a_batch_depends_on_its_step_alone(windows: TextWindows, steps: list[int]) -> None:
    """The batch of a step is the same in whatever order, and however often, batches are asked for."""
    forth = {step: windows.batch(step) for step in steps}
    for step in reversed(steps):
        for once, again in zip(forth[step], windows.batch(step), strict=True):
            np.testing.assert_array_equal(once, again)


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_batches_differ_and_reach_both_ends(seed: int) -> None:
    """Steps and seeds have batches of their own, and windows start anywhere that they fit.

    False alarm: a given start is missed by 800 draws among 10 with probability 0.9**800 < 1e-36.
    """
    windows = TextWindows(tokens=data.byte_tokens(bytes(range(13))), seq=3, batch_size=400, seed=seed)
    other = TextWindows(tokens=windows.tokens, seq=3, batch_size=400, seed=seed + 1)
    first, second = windows.batch(0)[0], windows.batch(1)[0]
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, other.batch(0)[0])
    assert set(first[:, 0]) | set(second[:, 0]) == set(range(10))


@settings(deadline=None)
@given(text_windows())
def test_evaluation_covers_every_target_once(windows: TextWindows) -> None:
    """Evaluation has each byte but the first exactly once as a target, after the byte before it."""
    text = windows.tokens.tobytes()
    pairs = [
        (int(i), int(t))
        for ids, targets in windows.evaluation()
        for row, following in zip(ids, targets, strict=True)
        for i, t in zip(row, following, strict=True)
        if t != IGNORED
    ]
    assert pairs == list(pairwise(text))


@settings(deadline=None)
@given(text_windows())
def test_evaluation_windows_have_one_length(windows: TextWindows) -> None:
    """Every evaluation window has `seq` ids: none is shorter, so that all are judged alike."""
    for ids, targets in windows.evaluation():
        assert ids.shape[1] == targets.shape[1] == windows.seq
        assert 1 <= len(ids) <= windows.batch_size


@settings(deadline=None)
@given(st.integers(0, 500))
def test_split_is_one_cut_at_nine_tenths(length: int) -> None:
    """The split gives the first nine tenths, rounded down, to training and all the rest to validation."""
    train, held_out = data.split(np.arange(length))
    np.testing.assert_array_equal(np.concatenate((train, held_out)), np.arange(length))
    assert len(train) == length * 9 // 10


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6), st.permutations(range(128)))
def test_validation_reads_nothing_that_training_reads(
    tmp_path_factory: pytest.TempPathFactory, seed: int, seq: int, text: list[int]
) -> None:
    """No place of a text is read, as an id or as a target, both in training and in validation.

    Each byte of the text stands once, and so tells its place. Evaluation reads every place of a part.
    """
    path = tmp_path_factory.mktemp("parts") / "text"
    path.write_bytes(bytes(text))
    read: list[set[int]] = []
    for part in data.datasets(str(path), seq=seq, batch_size=40, seed=seed):
        batches = [part.batch(step) for step in range(60)] + list(part.evaluation())
        read.append({int(token) for ids, targets in batches for token in (*ids.flat, *targets.flat)} - {IGNORED})
    assert read[0] & read[1] == set()
    assert read[0] | read[1] == set(text)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 4), st.integers(0, 40))
def test_sequences_come_in_the_order_of_their_step(seed: int, count: int, batch_size: int, resumed: int) -> None:
    """Sequences that are first asked for in a later epoch come as they do to who has asked from the beginning."""
    sequences = np.arange(2 * count).reshape(count, 2)
    whole, rest = (ShuffledSequences(sequences=sequences, batch_size=batch_size, seed=seed) for _ in range(2))
    asked = [whole.batch(step) for step in range(resumed + 8)]
    for step in range(resumed, resumed + 8):
        for once, again in zip(asked[step], rest.batch(step), strict=True):
            np.testing.assert_array_equal(once, again)


def test_random_data_is_the_tutorials(tmp_path: Path) -> None:
    """`random` is 1,000 sequences of 64 ids with a target each, in epochs of 32 batches, and 112 more."""
    train, held_out = data.datasets("random", seq=64, batch_size=32, seed=5)
    assert isinstance(train, ShuffledSequences)
    assert isinstance(held_out, ShuffledSequences)
    assert train.sequences.shape == (1000, 65)
    assert held_out.sequences.shape == (112, 65)
    epochs = [np.concatenate([train.batch(32 * epoch + step)[0] for step in range(32)]) for epoch in range(2)]
    for epoch in epochs:
        assert sorted(epoch.tolist()) == sorted(train.sequences[:, :-1].tolist())
    assert not np.array_equal(*epochs)
    ids, targets = train.batch(31)
    assert ids.shape == targets.shape == (8, 64)
    np.testing.assert_array_equal(ids[:, 1:], targets[:, :-1])
    assert sum(targets.size for _, targets in held_out.evaluation()) == 112 * 64


def test_random_bytes_are_uniform() -> None:
    """Every byte value is equally likely in random data.

    False alarm: chi squared with 255 degrees of freedom exceeds 400 with probability below 1e-7.
    """
    counts = np.bincount(data.random_sequences(11, seq=64).ravel(), minlength=256)
    expected = counts.sum() / 256
    assert ((counts - expected) ** 2 / expected).sum() < 400


def test_builtin_text_is_english_and_large() -> None:
    """The builtin text is some hundred thousand characters of help texts, the same at each call."""
    text = data.builtin_text()
    assert len(text) > 300_000
    assert text == data.builtin_text()
    assert b"The assert statement" in text or b'The "assert" statement' in text
    assert text.decode().isascii() or len(text.decode()) > 0.98 * len(text)


def test_a_file_is_read_as_bytes(tmp_path: Path) -> None:
    """A file's bytes are the data, split at nine tenths, whatever they mean."""
    content = bytes(range(256)) * 2
    (tmp_path / "text").write_bytes(content)
    train, held_out = data.datasets(str(tmp_path / "text"), seq=7, batch_size=3, seed=0)
    assert isinstance(train, TextWindows)
    assert isinstance(held_out, TextWindows)
    assert train.tokens.tobytes() + held_out.tokens.tobytes() == content
    assert len(train.tokens) == 460


@settings(deadline=None)
@given(st.integers(1, 40))
def test_the_least_text(tmp_path_factory: pytest.TempPathFactory, seq: int) -> None:
    """10 seq + 1 bytes are enough, one fewer is refused with that number."""
    path = tmp_path_factory.mktemp("least") / "text"
    path.write_bytes(b"x" * (10 * seq + 1))
    data.datasets(str(path), seq=seq, batch_size=2, seed=0)
    path.write_bytes(b"x" * (10 * seq))
    with pytest.raises(ValueError, match=rf"got {10 * seq} bytes in all; give at least {10 * seq + 1} bytes"):
        data.datasets(str(path), seq=seq, batch_size=2, seed=0)


def test_a_digest_tells_data_apart(tmp_path: Path) -> None:
    """Equal data have one digest, whatever their name and their batches; other bytes, or draws, have others."""
    options = {"seq": 3, "batch_size": 2, "seed": 0}
    for name, content in (("a", b"to be or not to be" * 9), ("b", b"to be or not to be" * 9), ("c", b"x" * 162)):
        (tmp_path / name).write_bytes(content)
    one = data.digest(*data.datasets(str(tmp_path / "a"), **options))
    assert one == data.digest(*data.datasets(str(tmp_path / "b"), **{**options, "seed": 7, "batch_size": 1}))
    drawn = [data.datasets("random", **{**options, "seed": seed, "seq": seq}) for seed, seq in ((0, 3), (0, 4), (1, 3))]
    others = [data.digest(*data.datasets(str(tmp_path / "c"), **options)), *(data.digest(*parts) for parts in drawn)]
    assert len({one, *others}) == 5
    assert all(len(digest) == 64 for digest in (one, *others))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A folder or device is a ValueError, a missing file an OSError; none is read."""
    for source in (str(tmp_path), "/dev/zero"):
        with pytest.raises(ValueError, match="data must be a regular file, got"):
            data.datasets(source, seq=4, batch_size=2, seed=0)
    with pytest.raises(FileNotFoundError):
        data.datasets(str(tmp_path / "none"), seq=4, batch_size=2, seed=0)


def test_too_little_to_draw_from_is_refused() -> None:
    """A text without a whole window, and sequences without a target, are a ValueError."""
    with pytest.raises(ValueError, match="seq \\+ 1 = 4 tokens, got 3 tokens"):
        TextWindows(tokens=data.byte_tokens(b"abc"), seq=3, batch_size=1, seed=0)
    with pytest.raises(ValueError, match="at least 2 tokens"):
        ShuffledSequences(sequences=np.zeros((3, 1), np.uint8), batch_size=1, seed=0)


@settings(deadline=None)
@given(st.integers(0, 2**64))
def test_purposes_and_numbers_have_streams_of_their_own(seed: int) -> None:
    """No two of a seed's generators start alike.

    False alarm: 64-bit draws of 12 generators collide with probability below 1e-17.
    """
    draws = [data.generator(seed, purpose, number).integers(2**63) for purpose in data.PURPOSES for number in range(3)]
    assert len(set(draws)) == len(draws)


def test_draws_are_pinned() -> None:
    """The generator is PCG64 on SeedSequence with the documented spawn key, today and later."""
    expected = np.random.Generator(np.random.PCG64(np.random.SeedSequence(7, spawn_key=(1, 3)))).random()
    assert data.generator(7, "batches", 3).random() == expected
    uniforms = data.sampling_uniforms(7)
    expected = np.random.Generator(np.random.PCG64(np.random.SeedSequence(7, spawn_key=(3, 0)))).random(5)
    assert [next(uniforms) for _ in range(5)] == expected.tolist()


def dropping(rate: float) -> ModelConfig:
    """Give a config with sizes that differ."""
    return ModelConfig(vocab=5, d_model=6, n_heads=2, n_layers=2, d_ff=10, max_len=9, dropout=rate)


@settings(deadline=None)
@given(st.integers(0, 2**64), st.integers(0, 10**9), st.integers(1, 3), st.integers(1, 9))
def test_keep_masks_depend_on_seed_and_step_alone(seed: int, step: int, batch: int, seq: int) -> None:
    """The masks of a step have the places and shapes that `transformer` asks for, and are the same whenever asked."""
    tree = data.keep_masks(dropping(0.5), (batch, seq), seed=seed, step=step)
    block = {"attention": (batch, seq, 6), "mlp_hidden": (batch, seq, 10), "mlp": (batch, seq, 6)}
    assert map_tree(np.shape, tree) == {"positions": (batch, seq, 6), "blocks": [block, block]}
    data.keep_masks(dropping(0.5), (batch, seq), seed=seed, step=step + 1)
    again = dict(leaves(data.keep_masks(dropping(0.5), (batch, seq), seed=seed, step=step)))
    for path, mask in leaves(tree):
        assert mask.dtype == bool
        np.testing.assert_array_equal(mask, again[path])


@settings(deadline=None)
@given(st.integers(0, 2**64), st.integers(0, 10**9), st.sampled_from((0.1, 0.5, 0.9)))
def test_each_place_is_kept_with_probability_one_minus_rate(seed: int, step: int, rate: float) -> None:
    """Every mask keeps a share of 1 - rate, each drawn for itself.

    False alarm: by Hoeffding, of n >= 60,000 draws the share is off by 0.02 with probability below 2e-20. Two masks
    of as many places agree by chance with probability below 0.82**60000.
    """
    masks = [mask for _, mask in leaves(data.keep_masks(dropping(rate), (1250, 8), seed=seed, step=step))]
    for mask in masks:
        assert abs(mask.mean() - (1 - rate)) < 0.02
    same_shape = [mask for mask in masks if mask.shape[-1] == 6]
    for one, other in combinations(same_shape, 2):
        assert not np.array_equal(one, other)
    other_step = [mask for _, mask in leaves(data.keep_masks(dropping(rate), (1250, 8), seed=seed, step=step + 1))]
    assert not any(np.array_equal(one, other) for one, other in zip(masks, other_step, strict=True))


def test_keep_masks_are_pinned() -> None:
    """Positions first, then block by block: uniform numbers of the documented generator, kept from the rate on."""
    source = np.random.Generator(np.random.PCG64(np.random.SeedSequence(7, spawn_key=(2, 3))))
    widths = (6, 6, 10, 6, 6, 10, 6)
    expected = [source.random((2, 4, width)) >= 0.25 for width in widths]
    tree = data.keep_masks(dropping(0.25), (2, 4), seed=7, step=3)
    for (_, mask), should in zip(leaves(tree), expected, strict=True):
        np.testing.assert_array_equal(mask, should)


def test_nothing_is_drawn_where_nothing_is_dropped() -> None:
    """At a rate of 0 there are no masks."""
    assert data.keep_masks(dropping(0.0), (2, 4), seed=7, step=3) is None


def test_neutral_modules_import_no_backend() -> None:
    """Data, recipe, runs and checkpoint, and the commands' help, need neither torch nor SciPy nor matplotlib."""
    code = (
        "import sys, reference.data, reference.recipe, reference.runs, reference.checkpoint, reference.cli;"
        "heavy = {'torch', 'scipy', 'matplotlib', 'reference.torch', 'reference.numpy'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
