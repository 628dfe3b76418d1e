"""The transformer, written twice: `reference.numpy` is its meaning, `reference.torch` is production."""

from reference.shape_checks import install

SPEC_VERSION = "0.3.0"
"""The version of the specification (names, arguments, meanings); docs/en/reference/versioning.md says when it moves."""

# The hooks must stand before the first import of what they check.
install()
