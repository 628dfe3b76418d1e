"""One file, written whole or not at all, and read with distrust."""

import dataclasses
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from reference import SPEC_VERSION, checkpoint
from reference.checkpoint import Checkpoint, CheckpointError, RunOptions, load_checkpoint, save_checkpoint
from reference.config import MINI, TINY, LayerNorm, Learned, ModelConfig, NoPositions, from_json
from reference.parameters import init_params, leaves
from reference.recipe import Recipe
from reference.runs import Moments

SMALL = ModelConfig(vocab=5, d_model=2, n_heads=1, n_layers=1, d_ff=3, max_len=4)


@st.composite
def checkpoints(draw: st.DrawFn) -> Checkpoint:
    """Draw small models of all kinds, some of them in the middle of a run."""
    heads = draw(st.integers(1, 3))
    config = ModelConfig(
        vocab=draw(st.integers(1, 7)),
        d_model=heads * draw(st.integers(1, 3)),
        n_heads=heads,
        n_layers=draw(st.integers(0, 3)),
        d_ff=draw(st.integers(1, 4)),
        max_len=draw(st.integers(1, 6)),
        positions=draw(st.sampled_from((MINI.positions, Learned(), NoPositions()))),
        norm=LayerNorm(affine=draw(st.booleans())),
        tied_head=draw(st.booleans()),
        output_projection=draw(st.booleans()),
        dropout=draw(st.sampled_from((0.0, 0.1))),
    )
    dtype = draw(st.sampled_from((np.float32, np.float64)))
    recipe = draw(st.sampled_from((None, Recipe(steps=9, clip_norm=None, lr=0.1 + 0.2))))
    run = draw(st.sampled_from((None, dataclasses.replace(OPTIONS, backend="torch", compiled=True, device="cuda:1"))))
    params, m, v = (init_params(config, seed=draw(st.integers(0, 2**32)), dtype=dtype) for _ in range(3))
    step = draw(st.integers(0, 10**12))
    moments = draw(st.sampled_from((None, Moments(step=step, m=m, v=v))))
    return Checkpoint(config=config, params=params, step=step, recipe=recipe, moments=moments, run=run)


OPTIONS = RunOptions(backend="numpy", data="näme\n", data_sha256="0" * 64, dtype="float64")


def small(step: int = 3) -> Checkpoint:
    """Give a checkpoint of few bytes; each step has parameters and moments of its own."""
    params, m, v = (init_params(SMALL, seed=3 * step + place) for place in range(3))
    moments = Moments(step=step, m=m, v=v)
    return Checkpoint(config=SMALL, params=params, step=step, recipe=Recipe(steps=9), moments=moments, run=OPTIONS)


def tensors_of(saved: Checkpoint) -> dict[str, np.ndarray]:
    """Give the tensors of a file under the names that the format's description gives them."""
    trees = {"": saved.params}
    if saved.moments is not None:
        trees |= {"adamw.m.": saved.moments.m, "adamw.v.": saved.moments.v}
    return {prefix + name: leaf for prefix, tree in trees.items() for name, leaf in leaves(tree)}


def assert_same(one: Checkpoint, other: Checkpoint) -> None:
    """Hold two checkpoints to be equal, bit for bit."""
    assert (one.config, one.step, one.recipe, one.run) == (other.config, other.step, other.recipe, other.run)
    assert (one.moments and one.moments.step) == (other.moments and other.moments.step)
    ours, theirs = tensors_of(one), tensors_of(other)
    assert list(ours) == list(theirs)
    for name, array in ours.items():
        assert array.dtype == theirs[name].dtype
        np.testing.assert_array_equal(array, theirs[name])


def header_and_data(path: Path) -> tuple[dict[str, Any], bytes]:
    """Take a file apart."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:start]), content[start:]


def put_together(path: Path, header: dict[str, Any], data: bytes) -> None:
    """Write a file whose digest is right, whatever else is wrong with it."""
    metadata = {name: text for name, text in header.get("__metadata__", {}).items() if name != "sha256"}
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    metadata["sha256"] = checkpoint._digest(metadata, entries, [data])
    encoded = json.dumps({"__metadata__": metadata, **entries}).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)


@settings(deadline=None)
@given(checkpoints())
def test_what_is_saved_is_loaded(tmp_path_factory: pytest.TempPathFactory, saved: Checkpoint) -> None:
    """A checkpoint comes back with the same config, step, recipe, options and, bit for bit, parameters and moments."""
    path = tmp_path_factory.mktemp("run") / checkpoint.CHECKPOINT
    save_checkpoint(path, saved)
    loaded = load_checkpoint(path)
    assert_same(loaded, saved)
    assert_same(load_checkpoint(path.parent), saved)
    for array in tensors_of(loaded).values():
        assert array.flags.writeable
        assert array.flags.c_contiguous


@settings(deadline=None)
@given(checkpoints())
def test_equal_checkpoints_are_equal_bytes(tmp_path_factory: pytest.TempPathFactory, saved: Checkpoint) -> None:
    """The bytes of a file depend on the checkpoint alone."""
    folder = tmp_path_factory.mktemp("run")
    save_checkpoint(folder / "one", saved)
    save_checkpoint(folder / "two", load_checkpoint(folder / "one"))
    assert (folder / "one").read_bytes() == (folder / "two").read_bytes()


def test_the_file_is_safetensors(tmp_path: Path) -> None:
    """The safetensors library reads the same tensors, and the documented metadata, from the file."""
    saved = small()
    save_checkpoint(tmp_path / "file", saved)
    tensors = load_file(tmp_path / "file")
    assert set(tensors) == set(tensors_of(saved))
    for name, array in tensors_of(saved).items():
        np.testing.assert_array_equal(tensors[name], array)
    with safe_open(tmp_path / "file", framework="np") as file:
        metadata = file.metadata()
    assert metadata["spec_version"] == SPEC_VERSION
    assert metadata["step"] == "3"
    assert from_json(json.loads(metadata["config"])) == SMALL
    assert set(metadata) == {"format", "spec_version", "step", "config", "recipe", "run", "sha256"}


def test_a_checkpoint_without_a_run_is_a_model(tmp_path: Path) -> None:
    """A file without recipe, moments and options, as one of before there were runs to resume, is read as it was."""
    saved = Checkpoint(config=SMALL, params=small().params, step=3)
    save_checkpoint(tmp_path / "file", saved)
    header, _ = header_and_data(tmp_path / "file")
    assert set(header["__metadata__"]) == {"format", "spec_version", "step", "config", "sha256"}
    assert set(header) == {"__metadata__", *(name for name, _ in leaves(saved.params))}
    found = load_checkpoint(tmp_path / "file")
    assert_same(found, saved)
    assert found.moments is found.run is found.recipe is None


def refused(path: Path) -> str:
    """Give the one line by which a file is refused."""
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    assert "; " in message
    return message


# Every place is for `make test-all`; a stride that no structure of the file shares takes its sample in between.
strides = pytest.mark.parametrize("stride", [61, pytest.param(1, marks=pytest.mark.thorough)])


@strides
def test_every_prefix_is_refused(tmp_path: Path, stride: int) -> None:
    """A file cut short anywhere, or with a byte too many, is refused."""
    save_checkpoint(tmp_path / "whole", small())
    content = (tmp_path / "whole").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    boundaries = {0, 1, 7, 8, 9, start - 1, start, start + 1, len(content) - 1}
    for length in sorted(boundaries | set(range(0, len(content), stride))):
        (tmp_path / "cut").write_bytes(content[:length])
        refused(tmp_path / "cut")
    (tmp_path / "cut").write_bytes(content + b"\0")
    refused(tmp_path / "cut")


@strides
def test_every_flipped_bit_is_found(tmp_path: Path, stride: int) -> None:
    """A file with one bit changed, anywhere in header or data, is refused."""
    save_checkpoint(tmp_path / "whole", small())
    content = (tmp_path / "whole").read_bytes()
    for place in range(0, 8 * len(content), stride):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        (tmp_path / "changed").write_bytes(changed)
        refused(tmp_path / "changed")


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    """Empty files, texts, pictures, another library's safetensors and what is no file are refused by name."""
    for content in (b"", b"\0" * 8, b"\0" * 64, b"text" * 50, b"\x89PNG\r\n\x1a\n" * 9, b"\xff" * 100):
        (tmp_path / "file").write_bytes(content)
        refused(tmp_path / "file")
    for payload in (b"[]", b"null", b"3", b'"x"', b'{"a":[]}', b'{"__metadata__":3}', b"[" * 100_000):
        (tmp_path / "file").write_bytes(len(payload).to_bytes(8, "little") + payload)
        refused(tmp_path / "file")
    for metadata in (None, {"format": "pt"}):
        save_file({"x": np.zeros(3)}, tmp_path / "file", metadata=metadata)
        assert "format" in refused(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="regular file"):
        load_checkpoint(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path)


def _config(**changes: Any) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        config = json.loads(header["__metadata__"]["config"]) | changes
        header["__metadata__"]["config"] = json.dumps(config)

    return change


def _entry(name: str = "output_head.b", **changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header[name].update(changes)


def _run(**changes: Any) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        run = json.loads(header["__metadata__"]["run"]) | changes
        header["__metadata__"]["run"] = json.dumps(run)

    return change


def _metadata(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["__metadata__"].update(changes)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_config(d_model=10**15), "d_model is 1000000000000000, more than the file has bytes"),
        (_config(vocab=10**15), "vocab"),
        (_config(d_ff=10**15), "d_ff"),
        (_config(n_heads=10**15), "n_heads"),
        (_config(n_layers=10**15), "n_layers"),
        (_config(n_layers=1000), "n_layers is 1000, and it has"),
        (_config(n_layers=2), "disagree about adamw.m.blocks.1"),
        (_config(vocab=6), "token_embedding.table has shape [5, 2], and its config asks for [6, 2]"),
        (_config(vocab="5"), ""),
        (_config(vocab=-5), "vocab"),
        (_config(n_heads=0), "n_heads"),
        (_config(dropout="x"), "config"),
        (_config(colour="red"), "unknown fields ['colour']"),
        (_metadata(config="[]"), ""),
        (_metadata(config="{}"), "vocab"),
        (_metadata(step="-1"), "step is -1"),
        (_metadata(step="x"), "x"),
        (_metadata(recipe='{"steps": 0}'), "steps"),
        (_metadata(format="transformer-spec 2"), "transformer-spec 2"),
        (_metadata(run="[]"), "its run has, or lacks, backend"),
        (_metadata(run="3"), ""),
        (_metadata(run='{"backend": "numpy"}'), "its run has, or lacks, compiled"),
        (_run(colour="red"), "its run has, or lacks, colour"),
        (_run(backend="jax"), "backend must be one of torch, numpy, got jax"),
        (_run(backend=["numpy"]), "backend must be a str"),
        (_run(dtype="float16"), "dtype must be one of"),
        (_run(compiled="yes"), "compiled must be a bool, got 'yes'"),
        (_run(data=None), "data must be a str, got None"),
        (_entry("adamw.v.output_head.b", shape=[10**15]), "adamw.v.output_head.b has shape"),
        (_entry("adamw.m.output_head.b", data_offsets=[0, 40]), "adamw.m.output_head.b lies at [0, 40]"),
        (_entry("adamw.m.output_head.b", dtype="F32"), "F32"),
        (lambda header: header.pop("adamw.m.output_head.b"), "disagree about adamw.m.output_head.b"),
        (lambda header: header.update({"adamw.w.x": header["output_head.b"]}), "disagree about adamw.w.x"),
        (
            lambda header: [header.pop(name) for name in list(header) if name.startswith("adamw.v.")],
            "disagree about adamw.v.blocks.0",
        ),
        (_entry(shape=[6]), "output_head.b has shape [6]"),
        (_entry(shape=[10**15]), "output_head.b has shape"),
        (_entry(shape=None), "output_head.b has shape None"),
        (_entry(dtype="F16"), "F16"),
        (_entry(dtype="F32"), "F32"),
        (_entry(dtype=[]), ""),
        (_entry(data_offsets=[0, 40]), "output_head.b lies at [0, 40]"),
        (_entry(data_offsets=[0, 10**15]), "output_head.b lies at"),
        (lambda header: header.pop("output_head.b"), "disagree about output_head.b"),
        (lambda header: header.update(extra=header["output_head.b"]), "disagree about extra"),
        (lambda header: header["__metadata__"].pop("config"), "config"),
    ],
)  # fmt: skip
def test_numbers_in_a_file_are_distrusted(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], reason: str
) -> None:
    """A header that disagrees with itself is refused with the reason, before memory is taken."""
    save_checkpoint(tmp_path / "file", small())
    header, data = header_and_data(tmp_path / "file")
    change(header)
    put_together(tmp_path / "file", header, data)
    tracemalloc.start()
    try:
        message = refused(tmp_path / "file")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert reason in message


def test_a_right_digest_is_accepted(tmp_path: Path) -> None:
    """The file that the table above changes is accepted unchanged, so that each refusal is its change's."""
    save_checkpoint(tmp_path / "file", small())
    put_together(tmp_path / "file", *header_and_data(tmp_path / "file"))
    assert_same(load_checkpoint(tmp_path / "file"), small())


def test_a_name_twice_is_refused(tmp_path: Path) -> None:
    """A header that names one tensor twice is refused."""
    save_checkpoint(tmp_path / "file", small())
    content = (tmp_path / "file").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = content[8:start].rstrip()[:-1] + b',"output_head.b":1}'
    (tmp_path / "file").write_bytes(len(header).to_bytes(8, "little") + header + content[start:])
    assert "twice" in refused(tmp_path / "file")


FAULTS: list[tuple[Any, str]] = [(os, "fsync"), (Path, "replace"), (np, "isfinite"), (os, "open")]


@pytest.mark.parametrize(("place", "name"), FAULTS)
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), MemoryError()])
def test_a_failing_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, error: BaseException
) -> None:
    """Whatever fails while a checkpoint is replaced, the folder holds one whole checkpoint, nothing else."""
    path = tmp_path / checkpoint.CHECKPOINT
    save_checkpoint(path, small(step=1))

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(place, name, fail)
        with pytest.raises(type(error)):
            save_checkpoint(path, small(step=2))
    assert os.listdir(tmp_path) == [checkpoint.CHECKPOINT]
    folder_only = (place, name) == (os, "open")  # the rename has been made, only the folder's sync has not
    assert_same(load_checkpoint(path), small(step=2 if folder_only else 1))


def test_order_of_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is synced before it gets its name, and its folder after."""
    events: list[str] = []
    fsync, rename = os.fsync, Path.replace

    def synced(fd: int) -> None:
        target = os.readlink(f"/proc/self/fd/{fd}")
        events.append("sync folder" if os.path.isdir(target) else "sync file")
        fsync(fd)

    def renamed(self: Path, target: Path) -> Path:
        events.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    save_checkpoint(tmp_path / "file", small())
    assert events == ["sync file", "rename", "sync folder"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_an_oserror(tmp_path: Path) -> None:
    """A write that the system refuses is an OSError, and what refused it is gone."""
    (tmp_path / "file.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path / "file", small())
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    """Parameters that are not finite, not float32 or float64, or not the config's are refused."""
    for value in (np.nan, np.inf, -np.inf):
        broken = small()
        broken.params["blocks"][0]["mlp"]["b_1"][1] = value
        with pytest.raises(ValueError, match=r"blocks\.0\.mlp\.b_1 must be finite"):
            save_checkpoint(tmp_path / "file", broken)
        for name in ("m", "v"):
            broken = small()
            getattr(broken.moments, name)["output_head"]["b"][1] = value
            with pytest.raises(ValueError, match=rf"adamw\.{name}\.output_head\.b must be finite"):
                save_checkpoint(tmp_path / "file", broken)
    half = Checkpoint(config=SMALL, params=init_params(SMALL, seed=0, dtype=np.float16), step=0)
    with pytest.raises(ValueError, match=r"token_embedding\.table must be float32 or float64, got float16"):
        save_checkpoint(tmp_path / "file", half)
    other = dataclasses.replace(small(), config=dataclasses.replace(SMALL, d_ff=4))
    with pytest.raises(TypeError, match="w_1 must have shape"):
        save_checkpoint(tmp_path / "file", other)
    moments = small().moments
    assert moments is not None
    other = dataclasses.replace(small(), moments=dataclasses.replace(moments, v={**moments.v, "output_head": {}}))
    with pytest.raises(ValueError, match=r"output_head\.\w, which params lack"):
        save_checkpoint(tmp_path / "file", other)
    with pytest.raises(ValueError, match="the moments must be those of the step, got 3 and 4"):
        save_checkpoint(tmp_path / "file", dataclasses.replace(small(), step=4))
    assert os.listdir(tmp_path) == []


def test_saving_changes_no_argument(tmp_path: Path) -> None:
    """Saving, of transposed arrays too, leaves the parameters as they are."""
    saved = Checkpoint(config=TINY, params=init_params(TINY, seed=1), step=0)
    table = saved.params["token_embedding"]["table"]
    saved.params["token_embedding"]["table"] = np.asfortranarray(table)
    save_checkpoint(tmp_path / "file", saved)
    np.testing.assert_array_equal(load_checkpoint(tmp_path / "file").params["token_embedding"]["table"], table)
    assert saved.params["token_embedding"]["table"].flags.f_contiguous
