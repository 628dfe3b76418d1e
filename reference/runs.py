"""What a training run is made of, as data of NumPy that both twins' `train` give and take."""

from collections.abc import Callable
from dataclasses import dataclass

from reference.parameters import Tree, leaves


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one update was: its number, counted from 1, and what it used.

    `loss` is that of its batch before the update, `grad_norm` the norm before clipping, `n_tokens` the number of
    targets that the loss is the mean of.
    """

    number: int
    loss: float
    lr: float
    grad_norm: float
    n_tokens: int


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Mean loss a target, and its exponential, over the `n_tokens` targets of a data set."""

    loss: float
    perplexity: float
    n_tokens: int


@dataclass(frozen=True, kw_only=True)
class Moments:
    """What AdamW remembers after `step` updates: the running means m of the gradients and v of their squares.

    `m` and `v` are trees of NumPy arrays, shaped like the parameters. Raises ValueError for a step below 0.
    """

    step: int
    m: Tree
    v: Tree

    def __post_init__(self) -> None:
        if isinstance(self.step, bool) or not isinstance(self.step, int) or self.step < 0:
            raise ValueError(f"Moments: step must be a whole number of at least 0, got {self.step!r}; give 0 or more")


Snapshot = Callable[[], tuple[Tree, Moments]]
"""Gives copies of the parameters and the moments, as NumPy trees: as they are when it is called during `on_step`."""

OnStep = Callable[[Step, Snapshot], None]
"""What `train` calls after each update."""


class DivergenceError(ArithmeticError):
    """Training met a NaN or an infinity; the parameters are those before the step that it stopped in.

    `step` is that step, counted from 1; `name` is the dotted path of the first tensor that is not finite, or
    "loss" where all parameters are.
    """

    def __init__(self, step: int, name: str, what: str) -> None:
        self.step = step
        self.name = name
        super().__init__(
            f"train: losses, gradients and parameters must stay finite, got {what} in {name} at step {step}; "
            f"lower lr or lengthen warmup"
        )


def check_moments(moments: Moments, shapes: Tree, steps: int) -> None:
    """Raise ValueError unless a run of `steps` updates, on parameters of these shapes, can go on from `moments`."""
    if moments.step > steps:
        raise ValueError(
            f"train: moments.step must be at most the recipe's steps, got {moments.step} and {steps}; "
            f"give a recipe of at least {moments.step} steps"
        )
    asked = dict(leaves(shapes))
    for name, tree in (("m", moments.m), ("v", moments.v)):
        given = {path: tuple(array.shape) for path, array in leaves(tree)}
        if wrong := [path for path in asked | given if asked.get(path) != given.get(path)]:
            path = wrong[0]
            raise ValueError(
                f"train: moments.{name} must be shaped like the parameters, got {given.get(path, 'nothing')} where "
                f"{path} has {asked.get(path, 'no place')}; give the moments that were saved with these parameters"
            )
