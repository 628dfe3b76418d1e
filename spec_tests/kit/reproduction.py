"""A failure as a few lines of Python that need NumPy and the subject only (and torch or JAX, if it takes tensors)."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

import reference.config
from reference.config import ModelConfig
from spec_tests.kit.wire import decode, decode_call
from spec_tests.subjects import conventions
from spec_tests.subjects.contract import Call, gradient_arguments, plain, signature
from spec_tests.subjects.conventions import Declared

Manners = Mapping[str, tuple[str, bool]]
"""What arrays each function gets, and whether it is a gradient that autograd takes; see `Subject.manners`."""


def reproduction(
    calls: list[dict[str, Any]],
    *,
    import_code: str,
    manners: Manners,
    dtype: str,
    declared: Mapping[str, Declared] = MappingProxyType({}),
    got: Any = None,
    should: Any = None,
) -> str | None:
    """Write the lines that make these calls and print what came and what should have come; None without a call.

    What the subject declares is minded: the lines show what it is really given.
    """
    distinct: list[Call] = []
    seen: set[str] = set()
    for data in calls:
        if (key := repr(data)) not in seen:
            seen.add(key)
            distinct.append(decode_call(data))
    if not distinct:
        return None
    writer = _Writer(manners, np.dtype(dtype), declared)
    lines: list[str] = []
    for number, call in enumerate(distinct, 1):
        suffix = f"_{number}" if len(distinct) > 1 else ""
        lines += writer.call(call, suffix)
    if got is not None and len(distinct) > 1:
        lines.append(f"print('compared', {plain_code(decode(got))})")
    if should is not None:
        lines.append(f"print('should  ', {plain_code(decode(should))})")
    return "\n".join([*writer.imports(), import_code, "", *lines]) + "\n"


class _Writer:
    def __init__(self, manners: Manners, dtype: np.dtype, declared: Mapping[str, Declared]) -> None:
        self.manners, self.dtype, self.declared = manners, dtype, declared
        self.packages, self.config_names, self.trees = set[str](), set[str](), False

    def imports(self) -> list[str]:
        lines = ["import numpy as np"]
        if "torch" in self.packages:
            lines.append("import torch")
        if "jax" in self.packages:
            lines += ["import jax", "import jax.numpy as jnp"]
        if self.config_names:
            lines.append(f"from reference.config import {', '.join(sorted(self.config_names))}")
        if self.trees:
            lines.append("from reference.parameters import leaves")
        if "jax" in self.packages:
            lines += ["", "jax.config.update('jax_enable_x64', True)"]
        return lines

    def call(self, call: Call, suffix: str) -> list[str]:
        arrays, by_autograd = self.manners.get(call.component, ("numpy", False))
        translated = conventions.translated(call, self.declared.get(plain(call.component), {}))
        call = translated.call
        names = list(signature(call.component).parameters)
        names += [f"argument_{i}" for i in range(len(names), len(call.args))]
        lines: list[str] = []
        stored: dict[str, Any] = {}

        def written(name: str, value: Any) -> str:
            if not isinstance(value, np.ndarray | Mapping | list | ModelConfig):
                return self.given(value, arrays)
            lines.append(f"{name}{suffix} = {self.given(value, arrays)}")
            stored[name] = value
            return f"{name}{suffix}"

        args = [written(name, value) for name, value in zip(names, call.args, strict=False)]
        args += [f"{name}={written(name, value)}" for name, value in call.options.items()]
        result = f"got{suffix}"
        if by_autograd:
            wanted = {f"{n}{suffix}": stored[n] for n in gradient_arguments(call.component) if n in stored}
            of_component = f"subject.{plain(call.component)}({', '.join(args[1:])})"
            lines += self.autograd(arrays, result, of_component, args[0], wanted)
        else:
            lines.append(f"{result} = subject.{call.component}({', '.join(args)})")
        lines += [line.format(got=result) for line in translated.lines]
        lines.append(f"print('{result:<8}', {result})")
        return lines

    def autograd(self, arrays: str, result: str, of_component: str, cotangent: str, wanted: dict) -> list[str]:
        """Write how autograd takes a gradient; it gives those of a tree's leaves one after another."""
        self.packages.add(arrays)
        if arrays == "jax":
            function = f"lambda {', '.join(wanted)}: {of_component}"
            return [f"_, pull_back = jax.vjp({function}, {', '.join(wanted)})", f"{result} = pull_back({cotangent})"]
        trees = [name for name, value in wanted.items() if not isinstance(value, np.ndarray)]
        self.trees = self.trees or bool(trees)
        parts = [f"*(leaf for _, leaf in leaves({name}))" if name in trees else name for name in wanted]
        return [
            f"wanted = [{', '.join(parts)}]",
            "for tensor in wanted:",
            "    tensor.requires_grad_()",
            f"{result} = torch.autograd.grad({of_component}, wanted, {cotangent}, materialize_grads=True)",
        ]

    def given(self, value: Any, arrays: str) -> str:
        """Write a value as the subject gets it."""
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{name!r}: {self.given(part, arrays)}" for name, part in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(self.given(part, arrays) for part in value) + "]"
        if isinstance(value, tuple):
            return "(" + "".join(f"{self.given(part, arrays)}, " for part in value) + ")"
        if isinstance(value, np.ndarray):
            value = value.astype(self.dtype) if value.dtype == np.float64 else value
            self.packages.add(arrays)
            make = {"numpy": "{}", "torch": "torch.from_numpy({})", "jax": "jnp.asarray({})"}[arrays]
            return make.format(plain_code(value))
        if isinstance(value, np.dtype):
            self.packages.add(arrays)
            return f"{'torch' if arrays == 'torch' else 'np'}.{value.name}"
        if isinstance(value, ModelConfig):
            parts = (type(value), type(value.positions), type(value.norm))
            self.config_names.update(part.__name__ for part in parts if hasattr(reference.config, part.__name__))
            return repr(value)
        return _scalar(value)


def plain_code(value: Any) -> str:
    """Write a value as NumPy has it."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name!r}: {plain_code(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        parts = "".join(f"{plain_code(part)}, " for part in value)
        return f"({parts})" if isinstance(value, tuple) else f"[{parts.removesuffix(', ')}]"
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
