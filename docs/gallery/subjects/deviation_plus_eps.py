"""A layer norm as in The Annotated Transformer: torch's std, which divides by n - 1, plus eps; declared as such."""

arrays = "torch"
conventions = {
    "layer_norm": {"variant": "unbiased_std_plus_eps", "default_eps": 1e-06},
}


def layer_norm(x, gamma, beta, *, eps=1e-6):
    """Give each vector mean 0 and about unit deviation."""
    mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
    normed = (x - mean) / (std + eps)
    if gamma is not None:
        normed = normed * gamma
    return normed if beta is None else normed + beta
