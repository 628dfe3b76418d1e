"""One safetensors file holds a run after some step: the model, and all that its next step depends on.

    metadata   format, spec_version, step, config (JSON), recipe (JSON), run (JSON), sha256
    tensors    one a parameter, under its dotted path: `blocks.0.attention.w_q`
               AdamW's moments of it: `adamw.m.blocks.0.attention.w_q`, `adamw.v.blocks.0.attention.w_q`

The state of the random numbers and the place in the data are no more than `recipe.seed` and `step`: every draw,
of a batch or of dropout, is a pure function of the seed, its purpose and the step (`reference.data.generator`).
Where recipe, run or moments are absent the model can be used, and its run cannot go on.

A file is whole or not there: it is written under a temporary name in the same folder, synced, and renamed
once. What is read is distrusted: sizes and shapes are held against the config before an array is made, and
the digest, which covers header and data, finds every changed bit.
"""

import hashlib
import json
import math
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from reference import SPEC_VERSION, config, recipe
from reference.config import ModelConfig
from reference.parameters import Tree, check_params, leaves, parameter_shapes, tree_from_leaves
from reference.recipe import Recipe
from reference.runs import Moments

CHECKPOINT = "model.safetensors"
"""The file's name in a run's folder."""

FORMAT = "transformer-spec 1"

BACKENDS = ("torch", "numpy")
RUN_DTYPES = ("float32", "float64", "bfloat16")

DTYPES = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
M, V = "adamw.m.", "adamw.v."  # before a parameter's path: its moments
MAX_HEADER = 100_000_000  # the limit of the safetensors library


class CheckpointError(ValueError):
    """A file that is no whole checkpoint of ours; the message says what is wrong with it in one line."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where and how a run computes; with config and recipe, all that must not change when it is resumed.

    `data` is the source as it was given, `data_sha256` what `reference.data.digest` says of its bytes. Raises
    ValueError where a value is none that a run can have.
    """

    backend: str
    data: str
    data_sha256: str
    dtype: str = "float32"
    device: str = "cpu"
    compiled: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            asked = bool if field.name == "compiled" else str
            if not isinstance(value := getattr(self, field.name), asked):
                raise ValueError(f"RunOptions: {field.name} must be a {asked.__name__}, got {value!r}; give one")
        for name, value, choices in (("backend", self.backend, BACKENDS), ("dtype", self.dtype, RUN_DTYPES)):
            if value not in choices:
                raise ValueError(f"RunOptions: {name} must be one of {', '.join(choices)}, got {value}; choose one")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A model after `step` updates. `params` are arrays of float32 or float64, and moments too, all of one dtype."""

    config: ModelConfig
    params: Tree
    step: int
    recipe: Recipe | None = None
    moments: Moments | None = None
    run: RunOptions | None = None


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; wherever the process stops, `path` is the old file or the new one, whole.

    Equal checkpoints give equal bytes. Raises ValueError where parameters or moments are not those of the config,
    of the step, or not finite, OSError where the file cannot be written; then `path` is as before.
    """
    moments = checkpoint.moments
    if moments is not None and moments.step != checkpoint.step:
        raise ValueError(
            f"save_checkpoint: the moments must be those of the step, got {moments.step} and {checkpoint.step}; "
            f"save the parameters and moments of one moment"
        )
    trees = {"": checkpoint.params} | ({} if moments is None else {M: moments.m, V: moments.v})
    names = {dtype: name for name, dtype in DTYPES.items()}
    arrays: dict[str, np.ndarray] = {}
    for prefix, tree in trees.items():
        check_params("save_checkpoint", tree, parameter_shapes(checkpoint.config))
        arrays |= {prefix + name: np.ascontiguousarray(leaf) for name, leaf in leaves(tree)}
    entries: dict[str, Any] = {}
    end = 0
    for name, array in arrays.items():
        if array.dtype not in names:
            raise ValueError(f"save_checkpoint: {name} must be float32 or float64, got {array.dtype}; convert it")
        if not np.isfinite(array).all():
            raise ValueError(
                f"save_checkpoint: {name} must be finite, got NaN or infinity; keep the checkpoint before it"
            )
        begin, end = end, end + array.nbytes
        entries[name] = {
            "dtype": names[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }

    metadata = {
        "format": FORMAT,
        "spec_version": SPEC_VERSION,
        "step": str(checkpoint.step),
        "config": json.dumps(config.to_json(checkpoint.config)),
    }
    if checkpoint.recipe is not None:
        metadata["recipe"] = json.dumps(recipe.to_json(checkpoint.recipe))
    if checkpoint.run is not None:
        metadata["run"] = json.dumps(asdict(checkpoint.run))
    data = [array.data.cast("B") for array in arrays.values()]
    metadata["sha256"] = _digest(metadata, entries, data)
    # By hand and not by the safetensors library, which puts the metadata in a different order each time.
    header = json.dumps({"__metadata__": metadata, **entries}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    write_whole(path, [len(header).to_bytes(8, "little"), header, *data])


def load_checkpoint(path: Path) -> Checkpoint:
    """Read the checkpoint in a file, or in the run's folder `path`.

    Raises CheckpointError where the file is cut short, changed, or not a checkpoint of this project, OSError
    where it cannot be read.
    """
    path = path / CHECKPOINT if path.is_dir() else path
    if not stat.S_ISREG(path.stat().st_mode):
        raise CheckpointError(f"load_checkpoint: a checkpoint is a regular file, got {path}; give a run's folder")
    try:
        with path.open("rb") as file:
            return _read(file, os.fstat(file.fileno()).st_size)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
        lacking = "it lacks " if isinstance(problem, KeyError) else ""
        reason = lacking + " ".join(str(problem).split())[:300]
        raise CheckpointError(
            f"load_checkpoint: a checkpoint must be whole and of transformer-spec, got {path}: {reason}; "
            f"give a folder that `train` wrote, or train again"
        ) from problem


def _read(file: BinaryIO, size: int) -> Checkpoint:
    header_size = int.from_bytes(file.read(8), "little")
    if not (size >= 8 and 2 <= header_size <= min(size - 8, MAX_HEADER)):
        raise ValueError(f"its {size} bytes hold no safetensors header")
    header: dict[str, Any] = json.loads(file.read(header_size).decode(), object_pairs_hook=_no_name_twice)
    metadata: dict[str, str] = header.pop("__metadata__", {})
    if metadata.get("format") != FORMAT:
        raise ValueError(f"its metadata's format is {metadata.get('format')!r}, not {FORMAT!r}")

    # Before anything is made from a number in the file, it must be one that a file of this size can mean.
    sizes: dict[str, Any] = json.loads(metadata["config"])
    for name in ("vocab", "d_model", "n_heads", "n_layers", "d_ff"):
        if not sizes[name] <= size:
            raise ValueError(f"its config's {name} is {sizes[name]}, more than the file has bytes")
    if sizes["n_layers"] > len(header):
        raise ValueError(f"its config's n_layers is {sizes['n_layers']}, and it has {len(header)} tensors")
    model = config.from_json(sizes)
    shapes = dict(leaves(parameter_shapes(model)))
    prefixes = ("", M, V) if any(name.startswith((M, V)) for name in header) else ("",)
    dtype, end = _check_entries(header, {prefix + name: shapes[name] for prefix in prefixes for name in shapes})
    if size != 8 + header_size + end:
        raise ValueError(f"it has {size} bytes, and its header asks for {8 + header_size + end}")

    data = file.read(end)
    digest = metadata.pop("sha256")
    if digest != _digest(metadata, header, [data]):
        raise ValueError("its bytes are not those that were written: the digest differs")
    flat = {
        name: np.frombuffer(data, dtype, math.prod(entry["shape"]), entry["data_offsets"][0])
        .reshape(entry["shape"])
        .astype(dtype.newbyteorder("="))  # a copy that may be written to
        for name, entry in header.items()
    }
    params, *m_and_v = (tree_from_leaves({name: flat[prefix + name] for name in shapes}) for prefix in prefixes)
    if (step := int(metadata["step"])) < 0:
        raise ValueError(f"its step is {step}")
    return Checkpoint(
        config=model,
        params=params,
        step=step,
        recipe=recipe.from_json(json.loads(metadata["recipe"])) if "recipe" in metadata else None,
        moments=Moments(step=step, m=m_and_v[0], v=m_and_v[1]) if m_and_v else None,
        run=_run_from_json(json.loads(metadata["run"])) if "run" in metadata else None,
    )


def _run_from_json(data: dict[str, Any]) -> RunOptions:
    if unknown := sorted(set(data) ^ {field.name for field in fields(RunOptions)}):
        raise ValueError(f"its run has, or lacks, {unknown[0]}")
    return RunOptions(**data)


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("its header has a name twice")
    return found


def _check_entries(entries: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> tuple[np.dtype[Any], int]:
    """Hold the table of tensors against the shapes; give the dtype, and where the data ends."""
    if strange := sorted(set(entries) ^ set(shapes)):
        raise ValueError(f"its tensors and its config disagree about {strange[0]}")
    dtypes = {entry["dtype"] for entry in entries.values()}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES):
        raise ValueError(f"its tensors must all be F32 or all F64, and they are {sorted(map(str, dtypes))}")
    dtype = DTYPES[dtypes.pop()]
    end = 0
    for name, entry in entries.items():
        begin, end = end, end + math.prod(shapes[name]) * dtype.itemsize
        if entry["shape"] != list(shapes[name]):
            raise ValueError(f"its {name} has shape {entry['shape']}, and its config asks for {list(shapes[name])}")
        if entry["data_offsets"] != [begin, end]:
            raise ValueError(f"its {name} lies at {entry['data_offsets']}, and should lie at {[begin, end]}")
    return dtype, end


def _digest(metadata: Mapping[str, str], entries: Mapping[str, Any], data: Iterable[Any]) -> str:
    digest = hashlib.sha256(json.dumps([metadata, entries]).encode())
    for part in data:
        digest.update(part)
    return digest.hexdigest()


def partial(path: Path) -> Path:
    """Say under which name a file is written until it is whole; a process that was killed may leave it there."""
    return path.with_name(path.name + ".partial")


def write_whole(path: Path, parts: Iterable[Any]) -> None:
    """Write bytes to `path` all or not at all: temporary name, sync, one rename, sync of the folder.

    Raises OSError where a part of it fails; the temporary file is gone then and `path` is as before (or,
    where only the folder's sync failed, new and whole).
    """
    temporary = partial(path)
    try:
        with temporary.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:  # Ctrl-C too leaves nothing behind
        temporary.unlink(missing_ok=True)
        raise
    if hasattr(os, "O_DIRECTORY"):  # the rename itself is lost with the power unless the folder is synced
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
