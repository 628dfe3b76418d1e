"""A mistake makes one thing wrong: what it must refuse it refuses all the same, or it would be found by its manners."""

import functools
from collections.abc import Callable

Function = Callable[..., object]


def as_strict_as(right: Function) -> Callable[[Function], Function]:
    """Let a wrong function refuse what the right one refuses: it is called first, and its result thrown away."""

    def decorate(wrong: Function) -> Function:
        @functools.wraps(wrong)
        def function(*args: object, **options: object) -> object:
            right(*args, **options)
            return wrong(*args, **options)

        return function

    return decorate
