"""Shuffle the tokens: the output of attention is shuffled along, but not with positions or a causal mask."""

import numpy as np

from reference.numpy import add_positions, multi_head_attention, sinusoidal_positions

rng = np.random.default_rng(0)
seq, d_model, n_heads = 5, 8, 2
x = rng.standard_normal((seq, d_model))
w_q, w_k, w_v, w_o = (rng.standard_normal((d_model, d_model)) for _ in range(4))
shuffled = rng.permutation(seq)


def attend(x, *, positions=False, causal=False):
    if positions:
        x = add_positions(x, sinusoidal_positions(seq, d_model))
    return multi_head_attention(x, w_q, w_k, w_v, w_o, n_heads=n_heads, causal=causal)


print("the order of the tokens:", shuffled.tolist())
for options in ({}, {"positions": True}, {"causal": True}):
    moved = attend(x[shuffled], **options)
    along = attend(x, **options)[shuffled]
    unchanged = attend(x, **options)
    print(
        f"{', '.join(options) or 'plain':10}",
        f"shuffled input gives shuffled output: {np.allclose(moved, along)};",
        f"the same output: {np.allclose(moved, unchanged)}",
    )
