"""Values as JSON: between the worker and its parent, and in the report.

An array is `{"$": "array", "dtype": ..., "shape": ..., "data": [flat]}`; what JSON cannot spell is a string in `data`
("nan", "inf", "-inf") or an object with a `$` that names its kind.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from reference.config import ModelConfig, from_json, to_json
from spec_tests.subjects.subject import Call


def encode(value: Any) -> Any:
    """Give the JSON form of a value; what has none becomes a text that shows it."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        return _encode_array(np.asarray(value))
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$": "float", "value": str(value)}
    if isinstance(value, ModelConfig):
        return {"$": "config", "fields": to_json(value)}
    if isinstance(value, Mapping):
        return {"$": "dict", "items": {str(name): encode(part) for name, part in value.items()}}
    if isinstance(value, tuple):
        return {"$": "tuple", "items": [encode(part) for part in value]}
    if isinstance(value, list):
        return [encode(part) for part in value]
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return {"$": "dtype", "name": np.dtype(value).name}
    return {"$": "text", "text": repr(value)[:2000]}


def _encode_array(array: np.ndarray) -> dict[str, Any]:
    flat = array.astype(np.float64) if array.dtype.kind == "f" else array
    data = flat.ravel().tolist()
    if array.dtype.kind == "f" and not np.isfinite(flat).all():
        data = [number if math.isfinite(number) else str(number) for number in data]
    return {"$": "array", "dtype": array.dtype.name, "shape": list(array.shape), "data": data}


def decode(value: Any) -> Any:
    """Give back what `encode` was given; a text stays a text."""
    if isinstance(value, list):
        return [decode(part) for part in value]
    if not isinstance(value, dict):
        return value
    match value["$"]:
        case "array":
            data = [float(n) if isinstance(n, str) else n for n in value["data"]]
            return (
                np.array(data, np.float64 if "float" in value["dtype"] else value["dtype"])
                .astype(value["dtype"])
                .reshape(value["shape"])
            )
        case "float":
            return float(value["value"])
        case "config":
            return from_json(value["fields"])
        case "dict":
            return {name: decode(part) for name, part in value["items"].items()}
        case "tuple":
            return tuple(decode(part) for part in value["items"])
        case "dtype":
            return np.dtype(value["name"])
        case _:
            return value["text"]


def encode_call(call: Call) -> dict[str, Any]:
    """Give the JSON form of a recorded call."""

    def given(value: Any) -> Any:  # what NumPy's arithmetic has made of a number is a number
        return encode(value.item() if isinstance(value, np.generic) else value)

    options = {name: given(value) for name, value in call.options.items()}
    return {"component": call.component, "args": [given(arg) for arg in call.args], "options": options}


def decode_call(data: dict[str, Any]) -> Call:
    """Give back what `encode_call` was given."""
    options = {name: decode(value) for name, value in data["options"].items()}
    return Call(data["component"], tuple(decode(arg) for arg in data["args"]), options)
