"""How a model is trained, as frozen data that both twins read."""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training run: AdamW, linear warm-up then a cosine, gradients clipped, batches drawn from `seed`.

    `weight_decay` acts on matrices and tables, not on gains and biases. `clip_norm=None` does not clip. An
    evaluation comes before the first step, after every `eval_every` steps, and after the last. Raises
    ValueError where a value cannot be trained with.
    """

    steps: int
    batch: int = 32
    seq: int = 64
    lr: float = 3e-4
    min_lr: float = 0.0
    warmup: int = 0
    weight_decay: float = 0.01
    clip_norm: float | None = 1.0
    eval_every: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (
            ("steps", 1),
            ("batch", 1),
            ("seq", 1),
            ("warmup", 0),
            ("eval_every", 1),
            ("seed", 0),
        ):
            count = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, int) or count < least:
                raise ValueError(
                    f"Recipe: {name} must be a whole number of at least {least}, got {count!r}; give {least} or more"
                )
        for name in ("lr", "min_lr", "weight_decay", "clip_norm"):
            value = getattr(self, name)
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float | None)
                or (value is None and name != "clip_norm")
            ):
                raise ValueError(f"Recipe: {name} must be a number, got {value!r}; give a number such as 0.1")
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise ValueError(f"Recipe: lr must be positive and finite, got {self.lr}; give a number such as 3e-4")
        if not 0 <= self.min_lr <= self.lr:
            raise ValueError(
                f"Recipe: min_lr must lie in [0, lr], got {self.min_lr} and lr {self.lr}; give 0 or a tenth of lr"
            )
        if self.warmup > self.steps:
            raise ValueError(
                f"Recipe: warmup must be at most steps, got {self.warmup} and {self.steps}; give a tenth of steps"
            )
        if not (self.weight_decay >= 0 and math.isfinite(self.weight_decay)):
            raise ValueError(
                f"Recipe: weight_decay must be finite and not negative, got {self.weight_decay}; give 0 for none"
            )
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise ValueError(
                f"Recipe: clip_norm must be positive and finite, got {self.clip_norm}; give 1.0, or None not to clip"
            )


def to_json(recipe: Recipe) -> dict[str, Any]:
    """Give the recipe as JSON data: the same fields."""
    return asdict(recipe)


def from_json(data: dict[str, Any]) -> Recipe:
    """Read what `to_json` gave. Raises ValueError for unknown, missing or ill-typed fields."""
    known = {field.name for field in fields(Recipe)}
    if unknown := sorted(set(data) - known):
        raise ValueError(f"Recipe: unknown fields {unknown}; known are {sorted(known)}")
    try:
        return Recipe(**data)
    except TypeError as problem:
        raise ValueError(f"Recipe: not a recipe: {problem}; give at least steps") from problem
