"""Text as bytes, and batches of windows over it: what both twins train on, in NumPy alone.

Every draw is a pure function of `(seed, purpose, number)`: batch 37 of a run is the same whether or not
batches 0 ... 36 were drawn before it. So a run has no generator to carry, and a run that goes on later sees
the same batches.
"""

import hashlib
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from jaxtyping import Bool, Integer

from reference.config import ModelConfig
from reference.parameters import Tree

VOCAB = 256
"""Tokens are bytes."""

IGNORED = -100
"""The target that `cross_entropy` leaves out, as its `ignore_index` says."""

Purpose = Literal["data", "batches", "dropout", "sampling"]
PURPOSES: tuple[Purpose, ...] = ("data", "batches", "dropout", "sampling")

Batch = tuple[Integer[np.ndarray, "batch seq"], Integer[np.ndarray, "batch seq"]]
"""Ids and their targets: each target is the token that follows its id, or `IGNORED`."""


def generator(seed: int, purpose: Purpose, number: int = 0) -> np.random.Generator:
    """Give the generator of one draw: PCG64 on SeedSequence(seed, spawn_key=(place of the purpose, number)).

    Source: NumPy's SeedSequence, whose spawn keys give independent streams (NEP 19; O'Neill 2014 for PCG64).
    """
    spawn_key = (PURPOSES.index(purpose), number)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=spawn_key)))


def sampling_uniforms(seed: int) -> Iterator[float]:
    """Give the endless uniform numbers in [0, 1) that `sample` is fed while text is generated."""
    source = generator(seed, "sampling")
    while True:
        yield float(source.random())


def keep_masks(config: ModelConfig, batch_shape: tuple[int, ...], *, seed: int, step: int) -> Tree | None:
    r"""Draw the keep-masks of dropout of step 0, 1, 2, ..., for ids of shape `batch_shape`; None at a rate of 0.

    $$ keep = [u \geq rate], \qquad u \sim U[0, 1) $$

    in the shape of the tree that `transformer` takes: `positions`, and in `blocks` for each block `attention`,
    `mlp_hidden` and `mlp`. All come in this order from the one generator of `(seed, "dropout", step)`.

    Source: Srivastava et al. 2014, section 4.
    """
    if config.dropout == 0:
        return None
    source = generator(seed, "dropout", step)

    def draw(width: int) -> Bool[np.ndarray, "*batch seq width"]:
        return source.random((*batch_shape, width)) >= config.dropout

    def draw_block() -> Tree:
        return {"attention": draw(config.d_model), "mlp_hidden": draw(config.d_ff), "mlp": draw(config.d_model)}

    return {"positions": draw(config.d_model), "blocks": [draw_block() for _ in range(config.n_layers)]}


def byte_tokens(text: bytes) -> Integer[np.ndarray, "seq"]:
    """Read each byte of `text` as one token of 0 ... 255."""
    return np.frombuffer(text, dtype=np.uint8)


def builtin_text() -> bytes:
    """Give the English text inside every CPython: the topics of `help()`, in alphabetical order, as UTF-8."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name].strip("\n") for name in sorted(topics)).encode()


def random_sequences(seed: int, *, seq: int, count: int = 1112) -> Integer[np.ndarray, "batch seq"]:
    """Draw the data of tutorial 001: uniform bytes in sequences of seq + 1, so that seq ids have a target.

    Of 1,112 sequences the 90/10 split leaves the tutorial's 1,000 for training. Nothing can be learned from
    them but themselves: on the other 112 no model that sees only what came before (a causal one) has an expected
    loss below log(256).
    """
    return generator(seed, "data").integers(0, VOCAB, size=(count, seq + 1), dtype=np.uint8)


def split(data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cut data once, at nine tenths of its first axis: training first, then validation, nothing in both."""
    cut = len(data) * 9 // 10
    return data[:cut], data[cut:]


class Dataset(Protocol):
    """What training asks of its data."""

    def batch(self, step: int) -> Batch:
        """Give the batch of step 0, 1, 2, ..., the same one whenever it is asked for."""
        ...

    def evaluation(self) -> Iterator[Batch]:
        """Give batches in which each target of the data stands exactly once."""
        ...


@dataclass(frozen=True, kw_only=True)
class TextWindows:
    """Windows of `seq` tokens anywhere in a text.

    Raises ValueError where the text is too short for one window and its last target.
    """

    tokens: Integer[np.ndarray, "seq"]
    seq: int
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        if len(self.tokens) < self.seq + 1:
            raise ValueError(
                f"TextWindows: the text must hold a window of seq + 1 = {self.seq + 1} tokens, "
                f"got {len(self.tokens)} tokens; give more text or a smaller seq"
            )

    def _windows(self, starts: Integer[np.ndarray, "batch"]) -> Batch:
        places = starts[:, None] + np.arange(self.seq)
        return self.tokens[places].astype(np.int64), self.tokens[places + 1].astype(np.int64)

    def batch(self, step: int) -> Batch:
        """Draw `batch_size` windows, each start equally likely, with replacement."""
        draw = generator(self.seed, "batches", step)
        return self._windows(draw.integers(0, len(self.tokens) - self.seq, size=self.batch_size))

    def evaluation(self) -> Iterator[Batch]:
        """Give windows side by side; the last ends with the text; the targets it repeats are ignored."""
        n_targets = len(self.tokens) - 1
        starts = np.arange(0, n_targets, self.seq)
        last = n_targets - self.seq
        for first in range(0, len(starts), self.batch_size):
            own = starts[first : first + self.batch_size]
            ids, targets = self._windows(np.minimum(own, last))
            repeated = np.arange(self.seq) < (own - np.minimum(own, last))[:, None]
            yield ids, np.where(repeated, IGNORED, targets)


@dataclass(frozen=True, kw_only=True)
class ShuffledSequences:
    """Whole sequences in epochs: each epoch has every sequence once, in an order of its own.

    The last batch of an epoch holds what is left. Raises ValueError where there is no sequence of two tokens.
    """

    sequences: Integer[np.ndarray, "batch seq"]
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        if self.sequences.shape[0] < 1 or self.sequences.shape[1] < 2:
            raise ValueError(
                f"ShuffledSequences: there must be a sequence of at least 2 tokens, "
                f"got shape {self.sequences.shape}; give more data"
            )

    def _rows(self, rows: Integer[np.ndarray, "batch seq"]) -> Batch:
        return rows[:, :-1].astype(np.int64), rows[:, 1:].astype(np.int64)

    def batch(self, step: int) -> Batch:
        """Give the next `batch_size` sequences of the epoch's order."""
        epoch_steps = -(-len(self.sequences) // self.batch_size)
        epoch, place = divmod(step, epoch_steps)
        order = generator(self.seed, "batches", epoch).permutation(len(self.sequences))
        return self._rows(self.sequences[order[place * self.batch_size :][: self.batch_size]])

    def evaluation(self) -> Iterator[Batch]:
        """Give every sequence once, in order."""
        for first in range(0, len(self.sequences), self.batch_size):
            yield self._rows(self.sequences[first : first + self.batch_size])


def digest(*parts: TextWindows | ShuffledSequences) -> str:
    """Give the SHA-256 of the tokens of data sets, in hexadecimal: the same for the same data, wherever they lie."""
    found = hashlib.sha256()
    for part in parts:
        tokens = part.tokens if isinstance(part, TextWindows) else part.sequences
        found.update(f"{tokens.dtype.str} {tokens.shape} ".encode())
        found.update(np.ascontiguousarray(tokens).data)
    return found.hexdigest()


def _file_bytes(path: Path) -> bytes:
    if not stat.S_ISREG(path.stat().st_mode):  # a folder, or endless like a device
        raise ValueError(f"datasets: data must be a regular file, got {path}; give a file, builtin or random")
    return path.read_bytes()


def datasets(
    source: str, *, seq: int, batch_size: int, seed: int
) -> tuple[TextWindows | ShuffledSequences, TextWindows | ShuffledSequences]:
    """Give training and validation data of a source: `builtin`, `random`, or the path of a file of any kind.

    Raises ValueError where the source is too small for one window in each part, OSError where it cannot be
    read.
    """
    if source == "random":
        train, held_out = split(random_sequences(seed, seq=seq))
        return (
            ShuffledSequences(sequences=train, batch_size=batch_size, seed=seed),
            ShuffledSequences(sequences=held_out, batch_size=batch_size, seed=seed),
        )
    tokens = byte_tokens(builtin_text() if source == "builtin" else _file_bytes(Path(source)))
    train, held_out = split(tokens)
    if len(held_out) < seq + 1:
        raise ValueError(
            f"datasets: the last tenth of the data must hold a window of seq + 1 = {seq + 1} bytes, "
            f"got {len(tokens)} bytes in all; give at least {10 * seq + 1} bytes or a smaller seq"
        )
    return (
        TextWindows(tokens=train, seq=seq, batch_size=batch_size, seed=seed),
        TextWindows(tokens=held_out, seq=seq, batch_size=batch_size, seed=seed),
    )
