"""Shape and dtype checks of every signature: jaxtyping reads the annotations, beartype enforces them.

The checks are an import hook, so no decorator stands in the code that they check. They are always on for
`reference.numpy` (the specification states its shapes and means it) and for `reference.torch` only when
`REFERENCE_SHAPE_CHECKS=1` is set before the first import: without it production functions are plain functions.
"""

import os

from beartype import BeartypeConf, beartype
from jaxtyping import install_import_hook

# The numeric tower: an int is accepted where a float is asked for, as everywhere in Python.
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))

CHECKER = "reference.shape_checks.checked"


def install() -> None:
    """Put the hooks in place; called once, by `import reference`."""
    install_import_hook("reference.numpy", CHECKER)
    if os.environ.get("REFERENCE_SHAPE_CHECKS") == "1":
        install_import_hook("reference.torch", CHECKER)
