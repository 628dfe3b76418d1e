"""The specification as properties, and the kit that puts them to somebody's code: `from spec_tests import check`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spec_tests.kit.runner import check as check

__all__ = ["check"]


def __getattr__(name: str) -> Any:
    # Late, for the pytest plugin lives in this package and loads in every pytest run of every user.
    if name == "check":
        from spec_tests.kit.runner import check

        return check
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
