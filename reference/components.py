"""The manifest: what every backend provides. Name, stem, formula, source; the meaning stands in `reference.numpy`."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Component:
    """One row of the contract. `stem` names its file in each backend, its test file and its page."""

    name: str
    stem: str
    formula: str
    source: str
    differentiable: bool = True


VASWANI = "Vaswani et al. 2017, Attention Is All You Need, arXiv:1706.03762"

_ALL = (
    Component(
        name="token_embedding", stem="embeddings", formula="h = scale * table[ids]", source=f"{VASWANI}, section 3.4"
    ),
    Component(
        name="sinusoidal_positions", stem="positions", differentiable=False,
        formula="PE[pos, 2i] = sin(pos / base^(2i/d)),  PE[pos, 2i+1] = cos(pos / base^(2i/d))",
        source=f"{VASWANI}, section 3.5",
    ),
    Component(
        name="add_positions", stem="positions", formula="y[t] = x[t] + table[offset + t]",
        source=f"{VASWANI}, section 3.5; Gehring et al. 2017, arXiv:1705.03122, section 3.1",
    ),
    Component(
        name="softmax", stem="attention", formula="w = exp(s - max s) / sum exp(s - max s)",
        source=f"{VASWANI}, equation 1",
    ),
    Component(
        name="causal_mask", stem="attention", differentiable=False,
        formula="allowed[i, j] = j <= i + k_seq - q_seq", source=f"{VASWANI}, section 3.2.3",
    ),
    Component(
        name="attention_weights", stem="attention", formula="A = softmax(scale * Q K^T + bias)",
        source=f"{VASWANI}, equation 1",
    ),
    Component(
        name="scaled_dot_product_attention", stem="attention", formula="softmax(scale * Q K^T + bias) V",
        source=f"{VASWANI}, equation 1",
    ),
    Component(
        name="self_attention", stem="attention", formula="attention(X W_q, X W_k, X W_v)",
        source=f"{VASWANI}, section 3.2.3",
    ),
    Component(
        name="multi_head_attention", stem="attention",
        formula="[head_1 ... head_n] W_o,  head_h = attention(X W_q[h], C W_k[h], C W_v[h])",
        source=f"{VASWANI}, section 3.2.2",
    ),
    Component(
        name="layer_norm", stem="norms", formula="y = (x - mean) / sqrt(var + eps) * gamma + beta",
        source="Ba et al. 2016, Layer Normalization, arXiv:1607.06450, equation 3",
    ),
    Component(
        name="relu", stem="mlp", formula="max(0, x)", source="Glorot et al. 2011, Deep Sparse Rectifier Neural Networks"
    ),
    Component(
        name="gelu", stem="mlp", formula="x/2 * (1 + erf(x / sqrt 2))",
        source="Hendrycks & Gimpel 2016, Gaussian Error Linear Units, arXiv:1606.08415",
    ),
    Component(
        name="dropout", stem="mlp", formula="x * keep / (1 - rate)",
        source="Srivastava et al. 2014, Dropout, JMLR 15, section 10",
    ),
    Component(
        name="feed_forward", stem="mlp", formula="f(x W_1 + b_1) W_2 + b_2", source=f"{VASWANI}, equation 2"
    ),
    Component(
        name="transformer_block", stem="blocks",
        formula="pre: x + f(norm(x)), twice;  post: norm(x + f(x)), twice",
        source=f"{VASWANI}, section 3.1; Xiong et al. 2020, arXiv:2002.04745, figure 1",
    ),
    Component(name="output_head", stem="models", formula="logits = x W + b", source=f"{VASWANI}, section 3.4"),
    Component(
        name="transformer", stem="models", formula="head(norm(block_L(... block_1(embed(ids) + P))))",
        source=f"{VASWANI}, section 3",
    ),
    Component(
        name="parameter_count", stem="models", differentiable=False,
        formula="sum of the sizes of all parameters, shared ones once", source=f"counted from {VASWANI}",
    ),
    Component(
        name="cross_entropy", stem="losses", formula="-mean log softmax(logits)[target]",
        source="Szegedy et al. 2016, arXiv:1512.00567, section 7 (label smoothing)",
    ),
    Component(
        name="perplexity", stem="losses", differentiable=False, formula="exp(total_loss / n_tokens)",
        source="Jelinek et al. 1977, Perplexity: a measure of the difficulty of speech recognition tasks",
    ),
    Component(
        name="adamw_step", stem="optimizers", differentiable=False,
        formula="p - lr * wd * p - lr * m_hat / (sqrt(v_hat) + eps)",
        source="Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2",
    ),
    Component(
        name="clip_grad_norm", stem="optimizers", differentiable=False, formula="g * min(1, max_norm / norm(g))",
        source="Pascanu et al. 2013, arXiv:1211.5063, section 3.2",
    ),
    Component(
        name="warmup_cosine", stem="optimizers", differentiable=False,
        formula="max_lr * (t + 1) / warmup, then half a cosine from max_lr to min_lr",
        source="Loshchilov & Hutter 2017, arXiv:1608.03983, equation 5; Goyal et al. 2017, arXiv:1706.02677",
    ),
    Component(
        name="next_token_distribution", stem="sampling", differentiable=False,
        formula="softmax(logits / T), then top-k, then top-p, renormalised each time",
        source="Fan et al. 2018, arXiv:1805.04833; Holtzman et al. 2020, arXiv:1904.09751, section 3.1",
    ),
    Component(
        name="sample", stem="sampling", differentiable=False, formula="min {i : u < p_0 + ... + p_i}",
        source="Devroye 1986, Non-Uniform Random Variate Generation, section III.2",
    ),
)  # fmt: skip

COMPONENTS = {component.name: component for component in _ALL}
