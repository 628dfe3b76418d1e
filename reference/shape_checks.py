"""Shape and dtype checks of every signature: jaxtyping reads the annotations, beartype enforces them.

The checks are an import hook, so no decorator stands in the code that they check. They are always on for
`reference.numpy` (the specification states its shapes and means it) and for `reference.torch` only when
`REFERENCE_SHAPE_CHECKS=1` is set before the first import: without it production functions are plain functions.
"""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from beartype import BeartypeConf, beartype
from jaxtyping import config, install_import_hook, jaxtyped

# The numeric tower: an int is accepted where a float is asked for, as everywhere in Python.
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))

CHECKER = "reference.shape_checks.checked"


def install() -> None:
    """Put the hooks in place; called once, by `import reference`."""
    _keep_jax_out()
    install_import_hook(_modules("numpy"), CHECKER)
    if os.environ.get("REFERENCE_SHAPE_CHECKS") == "1":
        install_import_hook(_modules("torch"), CHECKER)


def _modules(backend: str) -> list[str]:
    """Name the modules of a backend but for its private ones, which only get what was checked already."""
    return [f"reference.{backend}.{path.stem}" for path in Path(__file__).with_name(backend).glob("[!_]*.py")]


def _keep_jax_out() -> None:
    """Let jaxtyping not import JAX, where it is installed: three seconds and its threads, for shorter tracebacks.

    It tries once, at its first use, and goes on without if it cannot.
    """
    if "jax" not in sys.modules:
        sys.modules["jax"] = None  # pyright: ignore[reportArgumentType]
        try:
            jaxtyped(typechecker=None)
        finally:
            del sys.modules["jax"]


@contextmanager
def unchecked() -> Generator[None, None, None]:
    """Leave every check out for the length of a `with`, in all threads: for loops whose shapes are known to fit."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", before)
