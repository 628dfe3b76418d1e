"""A failure as a few lines of Python that need NumPy and the subject only (and torch, for a subject of tensors)."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

import reference.config
from reference.config import ModelConfig
from spec_tests.kit.wire import decode, decode_call
from spec_tests.subjects.subject import Call


def reproduction(
    calls: list[dict[str, Any]], *, import_code: str, arrays: str, dtype: str, got: Any = None, should: Any = None
) -> str | None:
    """Write the lines that make these calls and print what came and what should have come; None without a call."""
    distinct: list[Call] = []
    seen: set[str] = set()
    for data in calls:
        if (key := repr(data)) not in seen:
            seen.add(key)
            distinct.append(decode_call(data))
    if not distinct:
        return None
    writer = _Writer(arrays, np.dtype(dtype))
    lines: list[str] = []
    for number, call in enumerate(distinct, 1):
        suffix = f"_{number}" if len(distinct) > 1 else ""
        lines += writer.call(call, suffix)
    if got is not None and len(distinct) > 1:
        lines.append(f"print('compared', {writer.plain(decode(got))})")
    if should is not None:
        lines.append(f"print('should  ', {writer.plain(decode(should))})")
    return "\n".join([*writer.imports(), import_code, "", *lines]) + "\n"


class _Writer:
    def __init__(self, arrays: str, dtype: np.dtype) -> None:
        self.arrays, self.dtype, self.config_names = arrays, dtype, set[str]()

    def imports(self) -> list[str]:
        lines = ["import numpy as np"]
        if self.arrays == "torch":
            lines.append("import torch")
        if self.config_names:
            lines.append(f"from reference.config import {', '.join(sorted(self.config_names))}")
        return lines

    def call(self, call: Call, suffix: str) -> list[str]:
        import inspect

        import reference.numpy

        names = list(inspect.signature(getattr(reference.numpy, call.component)).parameters)
        names += [f"argument_{i}" for i in range(len(names), len(call.args))]
        lines: list[str] = []

        def written(name: str, value: Any) -> str:
            if not isinstance(value, np.ndarray | Mapping | list | ModelConfig):
                return self.given(value)
            lines.append(f"{name}{suffix} = {self.given(value)}")
            return f"{name}{suffix}"

        args = [written(name, value) for name, value in zip(names, call.args, strict=False)]
        args += [f"{name}={written(name, value)}" for name, value in call.options.items()]
        result = f"got{suffix}"
        lines.append(f"{result} = subject.{call.component}({', '.join(args)})")
        lines.append(f"print('{result:<8}', {result})")
        return lines

    def given(self, value: Any) -> str:
        """Write a value as the subject gets it."""
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{name!r}: {self.given(part)}" for name, part in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(map(self.given, value)) + "]"
        if isinstance(value, tuple):
            return "(" + "".join(f"{self.given(part)}, " for part in value) + ")"
        if isinstance(value, np.ndarray):
            value = value.astype(self.dtype) if value.dtype == np.float64 else value
            return f"torch.from_numpy({self.plain(value)})" if self.arrays == "torch" else self.plain(value)
        if isinstance(value, np.dtype):
            return f"{'torch' if self.arrays == 'torch' else 'np'}.{value.name}"
        if isinstance(value, ModelConfig):
            parts = (type(value), type(value.positions), type(value.norm))
            self.config_names.update(part.__name__ for part in parts if hasattr(reference.config, part.__name__))
            return repr(value)
        return _scalar(value)

    def plain(self, value: Any) -> str:
        """Write a value as NumPy has it."""
        if not isinstance(value, np.ndarray):
            return _scalar(value)
        natural = value.dtype in (np.dtype(np.float64), np.dtype(np.int64), np.dtype(bool)) and value.size
        dtype = "" if natural else f", np.{value.dtype.name}"
        if not value.size:
            return f"np.zeros({value.shape}{dtype})"
        first = value.flat[0]
        if value.size > 6 and value.tobytes() == np.full_like(value, first).tobytes():
            return f"np.full({value.shape}, {_scalar(first.item())}{dtype})"
        return f"np.array({_nested(value.tolist())}{dtype})"


def _nested(value: Any) -> str:
    return "[" + ", ".join(map(_nested, value)) + "]" if isinstance(value, list) else _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "np.nan" if math.isnan(value) else "np.inf" if value > 0 else "-np.inf"
    return repr(value)
