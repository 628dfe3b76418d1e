"""The glossary of axes: the names that annotations, docs and error messages use, and no others."""

AXES = {
    "batch": "sequences that do not see each other; `*batch` is none, one or several such axes",
    "seq": "positions of a sequence (n in the papers, T in much code)",
    "q_seq": "positions that ask: rows of an attention matrix",
    "k_seq": "positions that are asked: columns of an attention matrix",
    "d_model": "width of the residual stream",
    "heads": "attention heads (h)",
    "d_k": "width of one head's queries and keys",
    "d_v": "width of one head's values",
    "heads_d_k": "the heads' queries or keys side by side: heads x d_k",
    "heads_d_v": "the heads' values side by side: heads x d_v",
    "d_ff": "hidden width of the feed-forward network",
    "vocab": "token ids: 0 ... vocab - 1",
    "max_len": "the longest sequence, rows of a position table",
    "shape": "`*shape` is any shape at all: the function works element by element",
}
