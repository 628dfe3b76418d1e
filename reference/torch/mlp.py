"""The feed-forward network: what each token computes by itself."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from reference.config import ACTIVATIONS, Activation
from reference.torch._checks import check_boolean, check_input, check_parts, check_range
from reference.torch._products import affine


def relu(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    r"""Cut off what is negative.

    $$ \operatorname{relu}(x) = \max(0, x) $$

    Its derivative at 0 is taken to be 0.

    Source: Glorot et al. 2011, section 3; Vaswani et al. 2017, equation 2.
    """
    check_input("relu", "x", x, "")
    return functional.relu(x)


def gelu(x: Float[Tensor, "*shape"], *, approximate: Literal["none", "tanh"] = "none") -> Float[Tensor, "*shape"]:
    r"""Weigh x by the probability that a standard normal number is smaller.

    $$ \operatorname{gelu}(x) = x \, \Phi(x) = \tfrac{x}{2} \left(1 + \operatorname{erf}(x / \sqrt{2})\right) $$

    With `approximate` "tanh" it is the older form, which differs by up to 4.7e-4:

    $$ \tfrac{x}{2} \left(1 + \tanh\!\left(\sqrt{2 / \pi} \, (x + 0.044715 \, x^3)\right)\right) $$

    Raises ValueError for another form.

    Source: Hendrycks & Gimpel 2016, section 2.
    """
    check_input("gelu", "x", x, "")
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")
    return functional.gelu(x, approximate=approximate)


def dropout(x: Float[Tensor, "*shape"], keep: Bool[Tensor, "*shape"], *, rate: float) -> Float[Tensor, "*shape"]:
    r"""Keep some numbers and set the rest to 0, scaled so that the expectation stays.

    $$ y = x \odot keep \, / \, (1 - rate) $$

    where each entry of `keep` is True with probability 1 - rate: drawn by the caller, so that it can be repeated.

    Raises ValueError for a rate outside [0, 1).

    Source: Srivastava et al. 2014, section 10 (the inverted form).
    """
    check_input("dropout", "x", x, "")
    check_range("dropout", "rate", rate, 0, 1, below=True)
    check_boolean("dropout", "keep", keep)
    if keep.shape != x.shape:
        raise TypeError(f"dropout: keep must have the shape of x, got {tuple(keep.shape)} and {tuple(x.shape)}")
    return x * keep.to(x.dtype).div_(1 - rate)


def feed_forward(
    x: Float[Tensor, "*batch seq d_model"],
    w_1: Float[Tensor, "d_model d_ff"],
    b_1: Float[Tensor, "d_ff"] | None,
    w_2: Float[Tensor, "d_ff d_model"],
    b_2: Float[Tensor, "d_model"] | None,
    *,
    activation: Activation = "gelu",
    keep: Bool[Tensor, "*batch seq d_ff"] | None = None,
    rate: float = 0.0,
) -> Float[Tensor, "*batch seq d_model"]:
    r"""Widen each token's vector, bend it, and bring it back; no token sees another.

    $$ FFN(x) = f(x W_1 + b_1) \, W_2 + b_2 $$

    where f is `activation`. Dropout acts on the hidden values when `keep` is given. A bias of None is left out.

    Raises ValueError for an unknown activation, or a rate outside [0, 1).

    Source: Vaswani et al. 2017, equation 2.
    """
    check_input("feed_forward", "x", x, "seq d_model")
    check_input("feed_forward", "w_1", w_1, "d_model d_ff")
    d_model, d_ff = x.shape[-1], w_1.shape[-1]
    check_parts(
        "feed_forward", x,
        w_1=(w_1, (d_model, d_ff)), b_1=(b_1, (d_ff,)), w_2=(w_2, (d_ff, d_model)), b_2=(b_2, (d_model,)),
    )  # fmt: skip
    check_range("feed_forward", "rate", rate, 0, 1, below=True)
    hidden = _activate(affine(x, w_1, b_1), activation)
    if keep is not None:
        hidden = dropout(hidden, keep, rate=rate)
    return affine(hidden, w_2, b_2)


def _activate(x: Tensor, activation: Activation) -> Tensor:
    match activation:
        case "relu":
            return relu(x)
        case "gelu":
            return gelu(x)
        case "gelu_tanh":
            return gelu(x, approximate="tanh")
        case _:
            raise ValueError(f"feed_forward: activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")


def draw_keep(shape: tuple[int, ...], *, rate: float, device: torch.device) -> Bool[Tensor, "..."]:
    """Draw a keep-mask for `dropout`: True with probability 1 - rate, on the CPU to within 2^-16."""
    if device.type != "cpu":
        return torch.rand(shape, device=device) >= rate
    keep = torch.empty(shape, dtype=torch.bool, device="cpu")
    if torch.compiler.is_compiling():
        _draw_into_op(keep, rate)
    else:
        _draw_into(keep, rate)
    return keep


def _draw_into(keep: Tensor, rate: float) -> None:
    # One float an entry would take longer than the layer that it drops from: 64 random bits decide four entries.
    n = keep.numel()
    bits = torch.empty(-(-n // 4), dtype=torch.int64, device="cpu").random_(-(2**63), None).view(torch.int16)
    torch.ge(bits[:n], min(round(rate * 2**16), 2**16 - 1) - 2**15, out=keep.view(-1))


# The compiler's own random numbers are slower still, so to it this is one opaque operation. It writes into a tensor,
# for two operations with equal arguments and a result would be merged into one draw.
_draw_into_op = torch.library.custom_op(
    "transformer_spec::draw_into",
    _draw_into,
    mutates_args=("keep",),
    schema="(Tensor(a!) keep, float rate) -> ()",
    tags=torch.Tag.nondeterministic_seeded,
)


class Dropout(nn.Module):
    """`dropout` with the keep-mask that is given; without one it draws in train mode and does nothing in eval mode."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        check_range("Dropout", "rate", rate, 0, 1, below=True)
        self.rate = rate

    def draw(self, shape: tuple[int, ...], device: torch.device) -> Bool[Tensor, "..."] | None:
        """Draw a keep-mask, or None where nothing is to be dropped."""
        return draw_keep(shape, rate=self.rate, device=device) if self.training and self.rate else None

    def forward(
        self, x: Float[Tensor, "*shape"], *, keep: Bool[Tensor, "*shape"] | None = None
    ) -> Float[Tensor, "*shape"]:
        """Apply `dropout`."""
        keep = self.draw(x.shape, x.device) if keep is None else keep
        return x if keep is None else dropout(x, keep, rate=self.rate)


class FeedForward(nn.Module):
    """The weights of `feed_forward`, drawn from N(0, 0.02²), and its biases, 0 at first."""

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: Activation = "gelu",
        rate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.activation: Activation = activation
        self.w_1 = nn.Parameter(torch.empty(d_model, d_ff, device=device, dtype=dtype))
        self.b_1 = nn.Parameter(torch.empty(d_ff, device=device, dtype=dtype))
        self.w_2 = nn.Parameter(torch.empty(d_ff, d_model, device=device, dtype=dtype))
        self.b_2 = nn.Parameter(torch.empty(d_model, device=device, dtype=dtype))
        self.dropout = Dropout(rate)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights and set the biases to 0."""
        for weight, bias in ((self.w_1, self.b_1), (self.w_2, self.b_2)):
            nn.init.normal_(weight, std=0.02)
            nn.init.zeros_(bias)

    def forward(
        self, x: Float[Tensor, "*batch seq d_model"], *, keep: Bool[Tensor, "*batch seq d_ff"] | None = None
    ) -> Float[Tensor, "*batch seq d_model"]:
        """Apply `feed_forward`; the dropout is that of the hidden values."""
        keep = self.dropout.draw((*x.shape[:-1], self.w_1.shape[-1]), x.device) if keep is None else keep
        return feed_forward(
            x,
            self.w_1,
            self.b_1,
            self.w_2,
            self.b_2,
            activation=self.activation,
            keep=keep,
            rate=self.dropout.rate,
        )
