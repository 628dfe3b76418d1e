"""Safetensors files of small arrays: written alike each time, and read with distrust.

    8 bytes   n, the length of the header, little-endian
    n bytes   the header, JSON: {"__metadata__": {...}, NAME: {"dtype", "shape", "data_offsets": [begin, end]}, ...}
    the rest  the arrays, one after the other, row by row, little-endian

The safetensors library writes the metadata in another order each time, and reads a name that stands twice as its last.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reference.checkpoint import write_whole

DTYPES = {
    "F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "I64": np.dtype("<i8"), "I32": np.dtype("<i4"),
    "BOOL": np.dtype("bool"),
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
LARGEST = 256 * 2**20
"""No file of a few hundred small cases has more bytes."""


class BadFile(ValueError):
    """A file is not as it should be; the message says why in one line."""


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write arrays in their order; equal arrays give equal bytes."""
    entries: dict[str, Any] = {}
    end = 0
    for name, array in tensors.items():
        begin, end = end, end + array.nbytes
        entries[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [begin, end]}
    header = json.dumps({"__metadata__": dict(metadata), **entries}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    data = [np.ascontiguousarray(array).tobytes() for array in tensors.values()]
    write_whole(path, [len(header).to_bytes(8, "little"), header, *data])


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Give the metadata and the arrays of a file. Raises BadFile where it is not whole and sound."""
    return parse_tensors(read_file(path), path.name)


def parse_tensors(content: bytes, name: str) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Give the metadata and the arrays of a file that is called `name`. Raises BadFile where it is not sound."""
    try:
        return _parse(content)
    except BadFile as problem:
        raise BadFile(f"{name}: {problem}") from problem
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
        raise BadFile(f"{name}: no safetensors file: {' '.join(str(problem).split())[:200]}") from problem


def read_file(path: Path) -> bytes:
    """Give the bytes of a regular file of a sensible size. Raises BadFile for a link, a folder, or anything else."""
    if path.is_symlink() or not path.is_file():
        raise BadFile(f"{path.name}: {'a link' if path.is_symlink() else 'no such file'}; it must be a regular file")
    if (size := path.stat().st_size) > LARGEST:
        raise BadFile(f"{path.name}: it has {size} bytes, more than the {LARGEST} that are read")
    return path.read_bytes()


def read_json(content: bytes, name: str) -> Any:
    """Parse JSON. Raises BadFile where it is none, or where an object has a name twice."""
    try:
        return json.loads(content.decode(), object_pairs_hook=_no_name_twice)
    except (ValueError, RecursionError) as problem:
        raise BadFile(f"{name}: {' '.join(str(problem).split())[:200]}") from problem


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        names = [name for name, _ in pairs]
        raise BadFile(f"{next(n for n in names if names.count(n) > 1)!r} stands twice")
    return found


def _parse(content: bytes) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    header_size = int.from_bytes(content[:8], "little")
    if not 2 <= header_size <= len(content) - 8:
        raise BadFile(f"its {len(content)} bytes hold no safetensors header")
    header = read_json(content[8 : 8 + header_size], "its header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise BadFile("its metadata is no object")
    data, at, arrays = content[8 + header_size :], 0, {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        if entry["dtype"] not in DTYPES:
            raise BadFile(f"{name} has dtype {entry['dtype']}, and may have one of {', '.join(DTYPES)}")
        dtype, shape, (begin, end) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        if not all(type(size) is int and size >= 0 for size in shape):
            raise BadFile(f"{name} has shape {shape}, which is none")
        # what a header claims is held against the bytes that are there, and no array is made of the claim
        if begin != at or end - begin != math.prod(shape) * dtype.itemsize or end > len(data):
            raise BadFile(f"{name} lies at {[begin, end]}, which does not fit its shape, its neighbours or the file")
        at = end
        arrays[name] = np.frombuffer(data[begin:end], dtype).reshape(shape)
    if at != len(data):
        raise BadFile(f"its arrays end at {at}, and it has {len(data)} bytes of data")
    return metadata, {name: arrays[name] for name in header}
