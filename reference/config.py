"""What a transformer is made of, as frozen data: a variant is a value or a small type, never a flag.

`TINY` is the system of tutorial 000 and `MINI` that of tutorial 001, the two this project started from.
"""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

Variant = Literal["standard", "std_plus_eps", "unbiased_std_plus_eps"]
Activation = Literal["relu", "gelu", "gelu_tanh"]

VARIANTS = ("standard", "std_plus_eps", "unbiased_std_plus_eps")
ACTIVATIONS = ("relu", "gelu", "gelu_tanh")


@dataclass(frozen=True, kw_only=True)
class Sinusoidal:
    """Fixed sines and cosines of geometrically falling frequency (Vaswani et al. 2017, section 3.5)."""

    base: float = 10000.0


@dataclass(frozen=True, kw_only=True)
class Learned:
    """A trained table with one row a position (Gehring et al. 2017; GPT-2)."""


@dataclass(frozen=True, kw_only=True)
class NoPositions:
    """No positions: the model sees a set, or what order a causal mask lets through."""


Positions = Sinusoidal | Learned | NoPositions


@dataclass(frozen=True, kw_only=True)
class LayerNorm:
    """Layer normalisation (Ba et al. 2016); `variant` says which deviation divides and where eps stands."""

    eps: float = 1e-5
    variant: Variant = "standard"
    affine: bool = True


Norm = LayerNorm

_TYPES: dict[str, type] = {
    "Sinusoidal": Sinusoidal,
    "Learned": Learned,
    "NoPositions": NoPositions,
    "LayerNorm": LayerNorm,
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One transformer. Raises ValueError where the parts do not fit together."""

    vocab: int
    d_model: int
    n_heads: int
    n_layers: int
    d_ff: int
    max_len: int
    embedding_scale: float = 1.0
    positions: Positions = Sinusoidal()
    norm: Norm = LayerNorm()
    norm_placement: Literal["pre", "post"] = "pre"
    final_norm: bool = True
    attention_bias: bool = False
    output_projection: bool = True
    activation: Activation = "gelu"
    causal: bool = True
    tied_head: bool = False
    head_bias: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("vocab", "d_model", "n_heads", "n_layers", "d_ff", "max_len"):
            size = getattr(self, name)
            least = 0 if name == "n_layers" else 1
            if isinstance(size, bool) or not isinstance(size, int) or size < least:
                raise ValueError(
                    f"ModelConfig: {name} must be a whole number of at least {least}, got {size!r}; "
                    f"give {least} or more"
                )
        if self.d_model % self.n_heads:
            small = [n for n in range(1, math.isqrt(self.d_model) + 1) if self.d_model % n == 0]
            divisors = ", ".join(map(str, sorted({*small, *(self.d_model // n for n in small)})))
            raise ValueError(
                f"ModelConfig: d_model must be divisible by n_heads, got {self.d_model} and {self.n_heads}; "
                f"choose n_heads among {divisors}"
            )
        if not isinstance(self.positions, Positions):
            raise ValueError(
                f"ModelConfig: positions must be Sinusoidal, Learned or NoPositions, got {self.positions!r}; "
                f"give one of them, as Learned()"
            )
        if not isinstance(self.norm, Norm):
            raise ValueError(f"ModelConfig: norm must be a LayerNorm, got {self.norm!r}; give LayerNorm()")
        if not (math.isfinite(self.embedding_scale) and self.embedding_scale != 0):
            raise ValueError(
                f"ModelConfig: embedding_scale must be finite and not 0, got {self.embedding_scale}; give 1"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"ModelConfig: dropout must lie in [0, 1), got {self.dropout}; give 0 for none")
        if not self.norm.eps >= 0:
            raise ValueError(f"ModelConfig: norm.eps must not be negative, got {self.norm.eps}; give 1e-5")
        for name, value, choices in (
            ("norm_placement", self.norm_placement, ("pre", "post")),
            ("activation", self.activation, ACTIVATIONS),
            ("norm.variant", self.norm.variant, VARIANTS),
        ):
            if value not in choices:
                raise ValueError(f"ModelConfig: {name} must be one of {', '.join(choices)}, got {value!r}; choose one")

    @property
    def d_k(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_heads


def to_json(config: ModelConfig) -> dict[str, Any]:
    """Give the config as JSON data: the same fields, a variant type as an object with a `type` field."""
    variants = {
        name: {"type": type(getattr(config, name)).__name__, **asdict(getattr(config, name))}
        for name in ("positions", "norm")
    }
    return {**asdict(config), **variants}


def from_json(data: dict[str, Any]) -> ModelConfig:
    """Read what `to_json` gave. Raises ValueError for unknown, missing or ill-typed fields."""
    known = {field.name for field in fields(ModelConfig)}
    if unknown := sorted(set(data) - known):
        raise ValueError(f"ModelConfig: unknown fields {unknown}; known are {sorted(known)}")
    values = dict(data)
    try:
        for name in ("positions", "norm"):
            if name in values:
                options = dict(values[name])
                values[name] = _TYPES[options.pop("type")](**options)
        return ModelConfig(**values)
    except (TypeError, KeyError) as problem:
        raise ValueError(f"ModelConfig: not a config: {problem}") from problem


TINY = ModelConfig(
    vocab=10, d_model=8, n_heads=1, n_layers=2, d_ff=32, max_len=64,
    embedding_scale=1.0, positions=Sinusoidal(),
    norm=LayerNorm(eps=1e-5, variant="std_plus_eps", affine=False), norm_placement="post", final_norm=False,
    attention_bias=False, output_projection=False, activation="relu",
    causal=False, tied_head=False, head_bias=True, dropout=0.0,
)  # fmt: skip
"""Tutorial 000: two post-norm blocks of one head without output projection; 1,658 numbers."""

MINI = ModelConfig(
    vocab=256, d_model=128, n_heads=4, n_layers=4, d_ff=512, max_len=256,
    embedding_scale=math.sqrt(128), positions=Sinusoidal(),
    norm=LayerNorm(eps=1e-5, variant="standard", affine=True), norm_placement="pre", final_norm=True,
    attention_bias=False, output_projection=True, activation="gelu",
    causal=False, tied_head=False, head_bias=True, dropout=0.1,
)  # fmt: skip
"""Tutorial 001: four pre-norm blocks of four heads; 857,088 numbers. As the tutorial has it, not causal."""

PRESETS = {"tiny": TINY, "mini": MINI}
