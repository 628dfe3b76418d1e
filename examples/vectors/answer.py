"""Answer some of the vectors of the transformer specification: a program of its own, which needs NumPy and no more.

    transformer-spec vectors DIR
    python examples/vectors/answer.py DIR OUTPUTS
    transformer-spec verify DIR OUTPUTS

With `--mistake` the layer norm divides by n - 1, and `verify` says where that shows.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np

DTYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "BOOL": "?"}


def read(path):
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__")
    return {
        name: np.frombuffer(content[start:], DTYPES[t["dtype"]], math.prod(t["shape"]), t["data_offsets"][0])
        .reshape(t["shape"]) for name, t in header.items()
    }  # fmt: skip


def write(path, tensors, metadata):
    header, end = {"__metadata__": metadata}, 0
    for name, array in tensors.items():
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": "F64", "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(a.tobytes() for a in tensors.values()))


def softmax(scores, axis):
    top = scores.max(axis, keepdims=True, initial=-np.inf)
    e = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = e.sum(axis, keepdims=True)
    return e / np.where(total == 0, 1, total)


def softmax_gradient(cotangent, scores, axis):
    w = softmax(scores, axis)
    return {"scores": w * (cotangent - (w * cotangent).sum(axis, keepdims=True))}


def layer_norm(x, gamma, beta, eps, variant):
    if variant != "standard":
        raise NotImplementedError(f"the variant {variant}")
    ddof = 1 if "--mistake" in sys.argv and x.shape[-1] > 1 else 0
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True, ddof=ddof) + eps)
    for other in (gamma, beta):
        if other is not None and (other.shape != x.shape[-1:] or other.dtype != x.dtype):
            raise TypeError("gamma and beta are as wide as x, and of its dtype")
    if eps < 0 or x.dtype.kind != "f":
        raise ValueError("x is floating, and eps is not negative")
    return y * (1 if gamma is None else gamma) + (0 if beta is None else beta)


def gelu(x, approximate):
    if approximate == "tanh":
        return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x / 2 * (1 + np.vectorize(math.erf, otypes=[x.dtype])(x / math.sqrt(2)))


def scaled_dot_product_attention(q, k, v, mask, bias, causal, scale):
    scores = q @ k.swapaxes(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    scores = scores if bias is None else scores + bias
    allowed = np.ones(scores.shape, bool) if mask is None else np.broadcast_to(mask, scores.shape)
    if causal:
        allowed = allowed & np.tri(*scores.shape[-2:], k=scores.shape[-1] - scores.shape[-2], dtype=bool)
    if not (np.isfinite(k).all() and np.isfinite(v).all()):
        raise NotImplementedError("values that are not finite")
    return softmax(np.where(allowed, scores, -np.inf), -1) @ v


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def target_distribution(logits, targets, label_smoothing):
    y = np.full(logits.shape, label_smoothing / logits.shape[-1])
    y[np.arange(len(targets)), targets] += 1 - label_smoothing
    return y


def cross_entropy(logits, targets, ignore_index, label_smoothing):
    counts = targets != ignore_index
    if not counts.any():
        return np.zeros(())
    y = target_distribution(logits[counts], targets[counts], label_smoothing)
    return np.where(y > 0, -y * log_softmax(logits[counts]), 0).sum(-1).mean()


def cross_entropy_gradient(cotangent, logits, targets, ignore_index, label_smoothing):
    counts, d_logits = targets != ignore_index, np.zeros(logits.shape)
    if counts.any():
        y = target_distribution(logits[counts], targets[counts], label_smoothing)
        d_logits[counts] = cotangent * (np.exp(log_softmax(logits[counts])) - y) / counts.sum()
    return {"logits": d_logits}


FUNCTIONS = (softmax, layer_norm, gelu, scaled_dot_product_attention, cross_entropy)
GRADIENTS = {"softmax": softmax_gradient, "cross_entropy": cross_entropy_gradient}


def main(vectors, outputs):
    manifest = json.loads((vectors / "manifest.json").read_text())
    answers = {"format": "transformer-spec answers 1", "spec_version": manifest["spec_version"]}
    tensors, refused, unsupported = {}, [], {}
    for function in FUNCTIONS:
        name = function.__name__
        inputs = read(vectors / f"{name}.inputs.safetensors")
        for case in manifest["cases"]:
            if case["component"] != name:
                continue
            given = {n: inputs[v["name"]] if isinstance(v, dict) else v for n, v in case["arguments"].items()}
            if case.get("refused") and name != "layer_norm":
                unsupported[case["name"]] = "only layer_norm looks at its arguments"
                continue
            try:
                with np.errstate(all="ignore"):
                    tensors[f"{case['name']}/result"] = np.asarray(function(**given))
                    if name in GRADIENTS and "cotangent" in case:
                        found = GRADIENTS[name](inputs[case["cotangent"]["name"]], **given)
                        tensors |= {f"{case['name']}/gradient.{n}": array for n, array in found.items()}
            except NotImplementedError as problem:
                unsupported[case["name"]] = str(problem)
            except (TypeError, ValueError):
                refused.append(case["name"])
    outputs.mkdir(exist_ok=True)
    write(outputs / "answers.safetensors", tensors, answers)
    told = {**answers, "dtype": "float64", "refused": refused, "unsupported": unsupported}
    (outputs / "answers.json").write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:3]))
