"""Draw how data flows through TINY, with its numbers, and through MINI, with its shapes and parameter counts."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from math import prod
from typing import Literal

import numpy as np

import reference.numpy as meaning
from reference.config import MINI, TINY, ModelConfig
from reference.parameters import Tree, init_params, leaves, parameter_shapes, tutorial_000_params

Language = Literal["en", "zh"]
Text = str | tuple[str, str]
"""What is the same in both languages, or the English and the Chinese."""

IDS = np.array([3, 8, 2, 6])

# One column, drawn in the pixels of a narrow phone: there it is shown as it is, and text stays readable.
WIDTH = 360
LEFT, MIDDLE, RIGHT = 30, 180, 330
COLUMNS = ((30, 122), (134, 226), (238, 330))
AROUND = 346  # where what is added later goes around
LINE = 20  # height of a row of numbers

STYLE = """
.flow { --flow-fg: var(--md-default-fg-color, #222); --flow-link: var(--md-typeset-a-color, #4051b5);
  --flow-accent: var(--md-accent-fg-color, #526cfe); --flow-fill: var(--md-code-bg-color, #f5f5f5);
  --flow-plus: #4667c9; --flow-minus: #cf6a1f;
  display: block; width: 440px; max-width: 100%; height: auto; margin: 1.5em auto; font-size: 12.5px; }
@media (max-width: 30em) { .flow-figure { margin-inline: -0.7rem; } }
[data-md-color-scheme="slate"] .flow { --flow-plus: #6d8ff0; --flow-minus: #e2853f; }
.flow text { fill: var(--flow-fg); font-variant-numeric: tabular-nums; pointer-events: none; }
.flow .middle { text-anchor: middle; }
.flow .end { text-anchor: end; }
.flow .code, .flow .name { font-family: var(--md-code-font-family, ui-monospace, monospace); }
.flow .code { font-size: 12.2px; }
.flow .number { font-size: 12.1px; }
.flow .name { font-size: 12.6px; font-weight: 600; fill: var(--flow-link); }
.flow .quiet { fill-opacity: 0.8; }
.flow .strong { font-weight: 700; }
.flow .box { fill: var(--flow-fill); stroke: var(--flow-link); stroke-opacity: 0.55; }
.flow .step { fill: none; stroke: var(--flow-fg); stroke-opacity: 0.4; }
.flow .frame { fill: none; stroke: var(--flow-fg); stroke-opacity: 0.3; }
.flow .tab { fill: transparent; stroke: none; }
.flow .rule { stroke: var(--flow-fg); stroke-opacity: 0.4; }
.flow .line { fill: none; stroke: var(--flow-fg); stroke-opacity: 0.6; stroke-width: 1.2; }
.flow .stream { fill: none; stroke: var(--flow-link); stroke-width: 1.8; }
.flow .dot, .flow .stream-head { fill: var(--flow-link); }
.flow .line-head { fill: var(--flow-fg); fill-opacity: 0.6; }
.flow .sum { fill: var(--md-default-bg-color, #fff); stroke: var(--flow-link); stroke-width: 1.8; }
.flow .plus { fill: var(--flow-plus); }
.flow .minus { fill: var(--flow-minus); }
.flow .most { fill: var(--flow-accent); }
.flow a { text-decoration: none; outline: none; }
.flow a:hover .box, .flow a:hover .tab { stroke: var(--flow-accent); stroke-opacity: 1; }
.flow a:focus-visible .box, .flow a:focus-visible .tab
  { stroke: var(--flow-accent); stroke-opacity: 1; stroke-width: 3; }
.flow a:hover .name, .flow a:focus-visible .name { fill: var(--flow-accent); text-decoration: underline; }
""".strip()


def flow(name: Literal["tiny", "mini"], language: Language, link: Callable[[str], str]) -> str:
    """Give the picture as a block of HTML without blank lines; `link` says where a component's page is.

    Raises ValueError for another name.
    """
    draw = {"tiny": _tiny, "mini": _mini}
    if name not in draw:
        raise ValueError(f"no data flow is called {name!r}; there are {', '.join(draw)}")
    column = _Column(name, language, link)
    title, description = draw[name](column)
    return column.html(title, description)


@dataclass(frozen=True, kw_only=True)
class TinyNumbers:
    """What stands at each place of TINY's way from ids to scores, and the steps of its first block."""

    vectors: np.ndarray
    positions: np.ndarray
    stream: list[np.ndarray]  # before the first block, and after each
    weights: np.ndarray
    attended: np.ndarray
    normed: np.ndarray
    hidden: np.ndarray
    thought: np.ndarray
    logits: np.ndarray


def tiny_numbers() -> TinyNumbers:
    """Run TINY on the ids and the weights of tutorial 000, part by part."""
    params = tutorial_000_params()
    norm = {"eps": TINY.norm.eps, "variant": TINY.norm.variant}
    vectors = meaning.token_embedding(IDS, params["token_embedding"]["table"], scale=TINY.embedding_scale)
    positions = meaning.sinusoidal_positions(len(IDS), TINY.d_model)
    stream = [meaning.add_positions(vectors, positions)]
    for block in params["blocks"]:
        stream.append(meaning.transformer_block(stream[-1], block, TINY))

    x, first = stream[0], params["blocks"][0]
    w, mlp = first["attention"], first["mlp"]
    attended = meaning.self_attention(x, **w)
    normed = meaning.layer_norm(x + attended, None, None, **norm)
    return TinyNumbers(
        vectors=vectors,
        positions=positions,
        stream=stream,
        weights=meaning.attention_weights(x @ w["w_q"], x @ w["w_k"]),
        attended=attended,
        normed=normed,
        hidden=meaning.relu(normed @ mlp["w_1"] + mlp["b_1"]),
        thought=meaning.feed_forward(normed, **mlp, activation=TINY.activation),
        logits=meaning.transformer(IDS, params, TINY),
    )


def mini_counts() -> dict[str, int]:
    """Count the parameters of each part of MINI; `transformer_block` is one of the blocks, `transformer` all."""
    shapes = parameter_shapes(MINI)
    block = shapes["blocks"][0]
    return {
        "token_embedding": _size(shapes["token_embedding"]),
        "norm_1": _size(block["norm_1"]),
        "multi_head_attention": _size(block["attention"]),
        "norm_2": _size(block["norm_2"]),
        "feed_forward": _size(block["mlp"]),
        "transformer_block": _size(block),
        "final_norm": _size(shapes["final_norm"]),
        "output_head": _size(shapes["output_head"]),
        "transformer": meaning.parameter_count(MINI),
    }


def mini_shapes() -> dict[str, str]:
    """Say which shape stands at each place of MINI: those of a run, in which no other size is that of batch or seq."""
    batch, seq = 3, 7
    params = init_params(MINI, seed=0)
    block = params["blocks"][0]
    w, mlp = block["attention"], block["mlp"]
    ids = np.arange(batch * seq).reshape(batch, seq)

    vectors = meaning.token_embedding(ids, params["token_embedding"]["table"], scale=MINI.embedding_scale)
    positions = meaning.sinusoidal_positions(seq, MINI.d_model)
    x = meaning.add_positions(vectors, positions)
    normed = meaning.layer_norm(x, **block["norm_1"], eps=MINI.norm.eps)
    q, k, v = (_heads(normed @ w[part], MINI) for part in ("w_q", "w_k", "w_v"))
    arrays = {
        "ids": ids,
        "vectors": vectors,
        "positions": positions,
        "stream": x,
        "projected": normed @ w["w_q"],
        "heads": q,
        "weights": meaning.attention_weights(q, k, causal=MINI.causal),
        "answers": meaning.scaled_dot_product_attention(q, k, v, causal=MINI.causal),
        "attended": meaning.multi_head_attention(normed, **w, n_heads=MINI.n_heads, causal=MINI.causal),
        "hidden": meaning.gelu(normed @ mlp["w_1"] + mlp["b_1"]),
        "thought": meaning.feed_forward(normed, **mlp, activation=MINI.activation),
        "after_block": meaning.transformer_block(x, block, MINI),
        "logits": meaning.transformer(ids, params, MINI),
    }
    names = {batch: "batch", seq: "seq"}
    return {name: f"[{', '.join(str(names.get(n, n)) for n in array.shape)}]" for name, array in arrays.items()}


def _heads(x: np.ndarray, config: ModelConfig) -> np.ndarray:
    return x.reshape(*x.shape[:-1], config.n_heads, config.d_k).swapaxes(-2, -3)


def _size(shapes: Tree) -> int:
    return sum(prod(shape) for _, shape in leaves(shapes))


# ------------------------------------------------------------------------------------------ the two pictures


def _tiny(column: "_Column") -> tuple[Text, Text]:
    c, n = column, tiny_numbers()
    tokens, places = [str(i) for i in IDS], [str(i) for i in range(len(IDS))]
    table, shape, square = f"[{TINY.vocab}, {TINY.d_model}]", _shape(n.vectors), _shape(n.weights)
    best = [str(i) for i in n.logits.argmax(axis=-1)]
    high = max(np.abs(stage).max() for stage in (n.vectors, n.positions, n.normed, *n.stream))

    c.note((f"{len(IDS)} token ids", f"{len(IDS)} 个 token id"))
    c.chips("ids", tokens)
    c.arrow()
    c.box("token_embedding", (f"for each id, its row of the table {table}", f"按每个 id 取表 {table} 中的一行"))
    c.arrow((f"vectors {shape}", f"向量 {shape}"))
    c.matrix("vectors", n.vectors, ("the vectors", "向量"), rows=tokens, most=high)
    c.down()
    with c.frame("add_positions", ("vector + position", "向量 + 位置"), outer=True), c.added(fork=False):
        c.box("sinusoidal_positions", ("sines and cosines of places 0 to 3", "位置 0 至 3 的正弦与余弦"))
        c.arrow("P " + _shape(n.positions))
        c.matrix("positions", n.positions, ("the positions", "位置编码"), rows=places, most=high)
    c.arrow((f"the stream {shape}", f"残差流 {shape}"), stream=True)
    c.matrix("stream_0", n.stream[0], ("the stream before the blocks", "进入块之前的残差流"), rows=tokens, most=high)
    c.down(stream=True)

    with c.frame("transformer_block", ("block 1 of 2", "第 1 块，共 2 块"), outer=True):
        with c.added(), c.frame("self_attention", ("one head", "单头")):
            c.three(("x W_q", "x W_k", "x W_v"), tuple(f"{part} {shape}" for part in "QKV"), passing=True)
            c.weigh(f"softmax(Q Kᵀ / √{TINY.d_k})", square, n.weights, tokens)
            c.box("scaled_dot_product_attention", ("A V: means of the rows of V", "A V：V 各行的加权平均"))
            c.arrow(_at_most(n.attended))
            c.strip("attended", n.attended, ("the answers of attention", "注意力的输出"))
        c.arrow(stream=True)
        c.box("layer_norm", ("each row: (x − μ) / (σ + ε)", "每行：(x − μ) / (σ + ε)"))
        c.arrow(shape, stream=True)
        c.matrix("normed", n.normed, ("after the first norm", "第一次归一化之后"), rows=tokens, most=high)
        c.down(stream=True)
        with c.added(), c.frame("feed_forward", ("each row by itself", "逐行计算")):
            zeros = int((n.hidden == 0).sum())
            c.step("x W_1 + b_1  →  " + _shape(n.hidden))
            c.arrow()
            c.box(
                "relu",
                (f"negative becomes 0: {zeros} of {n.hidden.size}", f"负数变为 0：{n.hidden.size} 个中的 {zeros} 个"),
            )
            c.arrow(_at_most(n.hidden))
            c.strip("hidden", n.hidden, ("the hidden values", "隐藏值"))
            c.arrow()
            c.step("h W_2 + b_2  →  " + _shape(n.thought))
            c.arrow(_at_most(n.thought))
            c.strip("thought", n.thought, ("the output of the feed-forward network", "前馈网络的输出"))
        c.arrow(stream=True)
        c.box("layer_norm", ("each row: (x − μ) / (σ + ε)", "每行：(x − μ) / (σ + ε)"))
        c.arrow(shape, stream=True)
        c.matrix("stream_1", n.stream[1], ("after block 1", "第 1 块之后"), rows=tokens, most=high)
    c.arrow(stream=True)
    c.box("transformer_block", ("block 2 of 2: same steps, other weights", "第 2 块，共 2 块：步骤相同，权重不同"))
    c.arrow(shape, stream=True)
    c.matrix("stream_2", n.stream[2], ("after block 2", "第 2 块之后"), rows=tokens, most=high)
    c.arrow(stream=True)
    c.box(
        "output_head", (f"x W + b: a score for each of {TINY.vocab} tokens", f"x W + b：{TINY.vocab} 个 token 各得一分")
    )
    c.arrow(_shape(n.logits))
    c.space(8)
    c.bars("logits", n.logits, tokens)
    c.arrow()
    c.note(("argmax of each row", "每行的 argmax"))
    c.chips("argmax", best)
    return (
        ("Data flow of TINY, with its numbers", "TINY 的数据流与真实数值"),
        (
            f"From the ids {' '.join(tokens)} to vectors, plus positions, through two post-norm blocks of "
            f"self-attention and feed-forward network, to scores; the largest are at {' '.join(best)}.",
            f"从 id {' '.join(tokens)} 到向量，加上位置，经过两个 post-norm 块（自注意力与前馈网络），得到打分；"
            f"各行最大值在 {' '.join(best)}。",
        ),
    )


def _mini(column: "_Column") -> tuple[Text, Text]:
    c, count, shape = column, mini_counts(), mini_shapes()
    m = MINI
    weight = f"{m.d_model} × {m.d_model}"
    blocks = m.n_layers * count["transformer_block"]

    c.note(("token ids", "token id"))
    c.arrow(shape["ids"])
    c.box(
        "token_embedding",
        (f"√{m.d_model} times the row of the table", f"表中的一行，乘以 √{m.d_model}"),
        part="token_embedding",
        count=count["token_embedding"],
    )
    c.arrow(shape["vectors"])
    with c.frame("add_positions", ("vector + position", "向量 + 位置"), outer=True), c.added(fork=False):
        c.box("sinusoidal_positions", ("sines and cosines: nothing is learned", "正弦与余弦，无需学习"))
        c.down(shape["positions"])
    c.arrow(shape["stream"], stream=True)
    c.pill("dropout", (f"{m.dropout}, in training", f"{m.dropout}，仅训练时"))
    c.down(stream=True)

    each = f"{count['transformer_block']:,}"
    title = (f"{m.n_layers} blocks of {each}", f"{m.n_layers} 块，每块 {each}")
    with c.frame("transformer_block", title, outer=True, part="transformer_block", count=count["transformer_block"]):
        with c.added():
            c.box(
                "layer_norm", ("before attention: pre-norm", "在注意力之前：pre-norm"),
                part="norm_1", count=count["norm_1"],
            )  # fmt: skip
            c.arrow(shape["stream"])
            attention = count["multi_head_attention"]
            with c.frame("multi_head_attention", f"{attention:,}", part="multi_head_attention", count=attention):
                c.three(("x W_q", "x W_k", "x W_v"), (weight,) * 3)
                c.step(
                    (
                        f"split into {m.n_heads} heads  →  {shape['heads']}",
                        f"分成 {m.n_heads} 个头  →  {shape['heads']}",
                    )
                )
                c.weigh(f"softmax(Q Kᵀ / √{m.d_k})", shape["weights"])
                c.box("scaled_dot_product_attention", ("A V, in each head by itself", "A V，每个头各算各的"))
                c.arrow(shape["answers"])
                c.step((f"side by side again  →  {shape['attended']}", f"重新拼接  →  {shape['attended']}"))
                c.arrow()
                c.step(f"x W_o, {weight}")
            c.arrow()
            c.pill("dropout", (f"{m.dropout}, in training", f"{m.dropout}，仅训练时"))
        c.down(shape["stream"], stream=True)
        with c.added():
            c.box(
                "layer_norm", ("before the feed-forward network", "在前馈网络之前"),
                part="norm_2", count=count["norm_2"],
            )  # fmt: skip
            c.arrow(shape["stream"])
            network = count["feed_forward"]
            with c.frame("feed_forward", f"{network:,}", part="feed_forward", count=network):
                c.step("x W_1 + b_1  →  " + shape["hidden"])
                c.arrow()
                c.box("gelu", ("x Φ(x), for each number", "对每个数计算 x Φ(x)"))
                c.arrow()
                c.pill("dropout", (f"{m.dropout}, in training", f"{m.dropout}，仅训练时"))
                c.arrow()
                c.step("h W_2 + b_2  →  " + shape["thought"])
            c.arrow()
            c.pill("dropout", (f"{m.dropout}, in training", f"{m.dropout}，仅训练时"))
        c.down(shape["after_block"], stream=True)
    c.arrow(stream=True)
    c.box("layer_norm", ("the final norm", "最后的层归一化"), part="final_norm", count=count["final_norm"])
    c.arrow(shape["after_block"])
    c.box(
        "output_head", (f"x W + b: a score for each of {m.vocab}", f"x W + b：{m.vocab} 个 token 各得一分"),
        part="output_head", count=count["output_head"],
    )  # fmt: skip
    c.arrow(shape["logits"])
    c.note(("scores of the next token", "下一个 token 的打分"))
    c.space(16)
    c.tally(
        "parameter_count",
        (
            ("token_embedding", count["token_embedding"]),
            (f"{m.n_layers} × {count['transformer_block']:,}", blocks),
            ("final norm", count["final_norm"]),
            ("output_head", count["output_head"]),
        ),
        count["transformer"],
    )
    return (
        ("Data flow of MINI, with its shapes and parameter counts", "MINI 的数据流：形状与参数量"),
        (
            f"From ids {shape['ids']} to vectors {shape['vectors']}, plus positions, through {m.n_layers} pre-norm "
            f"blocks of multi-head attention and feed-forward network and a final norm, to scores {shape['logits']}; "
            f"{count['transformer']:,} parameters in all.",
            f"从 id {shape['ids']} 到向量 {shape['vectors']}，加上位置，经过 {m.n_layers} 个 pre-norm "
            f"块（多头注意力与前馈网络）和最后的层归一化，得到打分 {shape['logits']}；"
            f"共 {count['transformer']:,} 个参数。",
        ),
    )


def _shape(array: np.ndarray) -> str:
    return str(list(array.shape))


def _at_most(array: np.ndarray) -> str:
    return f"{_shape(array)}, max |x| = {float(f'{np.abs(array).max():.2g}')}"


# ------------------------------------------------------------------------------------------ the pen


@dataclass
class _Column:
    """A column that grows downwards: what is drawn next stands below what was drawn before."""

    picture: str
    language: Language
    link: Callable[[str], str]
    y: float = 8
    parts: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)  # frames and lines, drawn first

    def say(self, text: Text) -> str:
        """Give the text in the language of the page."""
        return text if isinstance(text, str) else text[self.language == "zh"]

    def html(self, title: Text, description: Text) -> str:
        """Give what was drawn."""
        # A group, not one image: an image hides the links inside from whoever listens to the page.
        heads = "".join(
            f'<marker id="flow-{self.picture}-{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
            f'markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">'
            f'<path class="{kind}-head" d="M0 0.5 8 4 0 7.5z"/></marker>'
            for kind in ("line", "stream")
        )
        lines = [
            '<div class="flow-figure">',
            f'<svg class="flow" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.y + 8:g}" '
            f'role="group" '
            f'aria-labelledby="flow-{self.picture}-title" aria-describedby="flow-{self.picture}-desc">',
            f'<title id="flow-{self.picture}-title">{escape(self.say(title))}</title>',
            f'<desc id="flow-{self.picture}-desc">{escape(self.say(description))}</desc>',
            f"<style>{STYLE}</style>",
            f"<defs>{heads}</defs>",
            *self.behind,
            *self.parts,
            "</svg>",
            "</div>",
        ]
        return "\n".join(lines)

    # Words

    def text(self, x: float, y: float, text: Text, kind: str = "") -> str:
        """Give a piece of text whose baseline is at y."""
        kind = f' class="{kind}"' if kind else ""
        return f'<text x="{x:g}" y="{y:g}"{kind}>{escape(self.say(text), quote=False)}</text>'

    def note(self, text: Text) -> None:
        """Say what stands here."""
        self.parts.append(self.text(MIDDLE, self.y + 13, text, "middle"))
        self.y += 20

    def space(self, height: float) -> None:
        """Leave some room."""
        self.y += height

    # Boxes

    def linked(self, name: str, label: Text, inside: Sequence[str], part: str = "", count: int | None = None) -> None:
        """Make a link to a component of what is inside."""
        label = self.say(label)
        spoken = f"{name}: {label}" if label else name
        if count is not None:
            spoken += "" if f"{count:,}" in label else f", {count:,}"
            spoken += " " + self.say(("parameters", "个参数"))
        data = f' data-part="{part}" data-count="{count}"' if part else ""
        self.parts.append(
            f'<a href="{escape(self.link(name))}" aria-label="{escape(spoken)}" data-component="{name}"{data}>'
            + "".join(inside)
            + "</a>"
        )

    def box(self, name: str, text: Text, *, part: str = "", count: int | None = None) -> None:
        """Draw a component: its name, what it does here, and how many parameters it has."""
        inside = [_rect("box", LEFT, self.y, RIGHT - LEFT, 44), self.text(LEFT + 12, self.y + 18, name, "name")]
        inside.append(self.text(LEFT + 12, self.y + 35, text))
        if count is not None:
            inside.append(self.text(RIGHT - 12, self.y + 18, f"{count:,}", "end"))
        self.linked(name, text, inside, part, count)
        self.y += 44

    def pill(self, name: str, text: Text) -> None:
        """Draw a component on one line."""
        inside = [
            _rect("box", LEFT + 52, self.y, RIGHT - LEFT - 104, 26, 13),
            self.text(MIDDLE - 78, self.y + 17.5, name, "name"),
            self.text(MIDDLE + 78, self.y + 17.5, text, "end"),
        ]
        self.linked(name, text, inside)
        self.y += 26

    def step(self, text: Text) -> None:
        """Draw a step that is no component of its own."""
        self.parts.append(_rect("step", LEFT, self.y, RIGHT - LEFT, 26))
        self.parts.append(self.text(MIDDLE, self.y + 17.5, text, "middle"))
        self.y += 26

    def three(self, above: Sequence[str], below: Sequence[str], *, passing: bool = False) -> None:
        """Draw the three projections side by side, fanned out from the one line; the last may pass what comes next."""
        top = self.y + 14
        for (left, right), first, second in zip(COLUMNS, above, below, strict=True):
            middle = (left + right) / 2
            bend = f"M{MIDDLE} {self.y:g}H{middle:g}V{top:g}"
            self.behind.append(self.path("line", bend))
            self.parts.append(_rect("step", left, top, right - left, 42))
            self.parts.append(self.text(middle, top + 18, first, "code middle"))
            self.parts.append(self.text(middle, top + 34, second, "middle quiet"))
            head = not (passing and right == RIGHT)
            self.behind.append(self.path("line", f"M{middle:g} {top + 42}V{top + 58}", head=head))
        self.y = top + 58

    def weigh(self, formula: str, shape: str, weights: np.ndarray | None = None, rows: Sequence[str] = ()) -> None:
        """Draw how queries and keys become weights, while the values pass by on the right."""
        (left, _), (_, right), (_, _) = COLUMNS
        middle, values = (left + right) / 2, sum(COLUMNS[2]) / 2
        top = self.y
        if weights is None:  # after a step as wide as the column
            for x in (sum(COLUMNS[0]) / 2, sum(COLUMNS[1]) / 2):
                self.behind.append(self.path("line", f"M{x} {top}V{top + 18}"))
            self.y += 18
        inside = [
            _rect("box", left, self.y, right - left, 60),
            self.text(left + 12, self.y + 18, "attention_weights", "name"),
            self.text(left + 12, self.y + 35, "A = " + formula),
            self.text(left + 12, self.y + 51, shape, "code"),
        ]
        self.linked("attention_weights", formula, inside)
        self.y += 60
        if weights is not None:
            self.behind.append(self.path("line", f"M{middle:g} {self.y}V{self.y + 18}"))
            self.y += 18
            self.matrix("weights", weights, ("weights", "注意力权重"), rows=rows, digits=4, right=right, most=1)
        self.behind.append(self.path("line", f"M{middle:g} {self.y}V{self.y + 18}"))
        self.y += 18
        self.behind.append(self.path("line", f"M{values:g} {top}V{self.y}"))

    # Numbers

    def chips(self, name: str, values: Sequence[str]) -> None:
        """Draw whole numbers, one a token."""
        start = MIDDLE - 20 * len(values)
        cells = []
        for index, value in enumerate(values):
            cells.append(_rect("step", start + 40 * index + 2, self.y, 36, 24))
            cells.append(self.text(start + 40 * index + 20, self.y + 16.5, value, "code middle strong"))
        self.group(name, " ".join(values), cells)
        self.y += 24

    def group(self, name: str, label: Text, cells: Sequence[str]) -> None:
        """Make one picture, with one description, of many marks."""
        label = escape(self.say(label))
        self.parts.append(f'<g role="img" aria-label="{label}" data-array="{name}">{"".join(cells)}</g>')

    def matrix(
        self,
        name: str,
        array: np.ndarray,
        label: Text,
        *,
        rows: Sequence[str],
        most: float,
        digits: int = 2,
        right: float = RIGHT,
    ) -> None:
        """Draw an array as coloured cells with its numbers in them; `most` is what has the full colour."""
        width = (right - LEFT) / array.shape[1]
        cells = []
        for i, row in enumerate(array):
            baseline = self.y + LINE * i + 14.3
            cells.append(self.text(LEFT - 5, baseline, rows[i], "code end quiet"))
            for j, value in enumerate(row):
                x = LEFT + width * j
                cells.append(_cell(x, self.y + LINE * i, width, LINE, value, most))
                cells.append(self.text(x + width / 2, baseline, _number(value, digits), "number middle"))
        self.group(name, self.rows_aloud(label, array, digits), cells)
        self.y += LINE * len(array)

    def strip(self, name: str, array: np.ndarray, label: Text) -> None:
        """Draw an array as coloured cells alone; its largest number has the full colour."""
        width, height = (RIGHT - LEFT) / array.shape[1], 10
        most = np.abs(array).max()
        cells = [
            _cell(LEFT + width * j, self.y + height * i, width, height, value, most, full=0.9)
            for i, row in enumerate(array)
            for j, value in enumerate(row)
        ]
        self.group(name, label, cells)
        self.y += height * len(array)

    def bars(self, name: str, array: np.ndarray, rows: Sequence[str]) -> None:
        """Draw each row as bars up and down, the largest marked with its number."""
        width = (RIGHT - LEFT) / array.shape[1]
        high = 30 / np.abs(array).max()
        cells = []
        for i, row in enumerate(array):
            zero = self.y + 58 * i + 26
            best = int(row.argmax())
            cells.append(f'<path class="rule" d="M{LEFT} {zero:g}H{RIGHT}"/>')
            cells.append(self.text(LEFT - 5, zero + 4.5, rows[i], "code end quiet"))
            for j, value in enumerate(row):
                x = LEFT + width * (j + 0.5)
                kind = "most" if j == best else "plus" if value >= 0 else "minus"
                top, height = min(zero, zero - high * value), abs(high * value)
                opacity = "" if j == best else ' fill-opacity="0.5"'
                cells.append(
                    f'<rect class="{kind}" x="{x - 9:g}" y="{top:.1f}" width="18" height="{height:.1f}"{opacity}>'
                    f"<title>{value:.6f}</title></rect>"
                )
            x = LEFT + width * (best + 0.5)
            cells.append(self.text(x, zero - high * row[best] - 4, _number(row[best], 3), "middle strong"))
        bottom = self.y + 58 * len(array)
        for j in range(array.shape[1]):
            cells.append(self.text(LEFT + width * (j + 0.5), bottom + 12, str(j), "code middle quiet"))
        best = " ".join(str(i) for i in array.argmax(axis=-1))
        self.group(name, (f"scores, the largest at {best}", f"打分，各行最大值在 {best}"), cells)
        self.y = bottom + 20

    def rows_aloud(self, label: Text, array: np.ndarray, digits: int) -> str:
        """Say the numbers of an array, for whoever listens."""
        rows = "; ".join(" ".join(_number(value, digits) for value in row) for row in array)
        return f"{self.say(label)}: {rows}"

    def tally(self, name: str, rows: Sequence[tuple[str, int]], total: int) -> None:
        """Draw a sum, the total of which is a component."""
        for label, count in rows:
            self.parts.append(self.text(LEFT + 12, self.y + 14, label, "code"))
            self.parts.append(self.text(RIGHT - 12, self.y + 14, f"{count:,}", "end"))
            self.y += LINE
        self.y += 6
        inside = [
            _rect("box", LEFT, self.y, RIGHT - LEFT, 30),
            self.text(LEFT + 12, self.y + 19.5, name, "name"),
            self.text(RIGHT - 12, self.y + 19.5, f"{total:,}", "end strong"),
        ]
        self.linked(name, "", inside, "total", total)
        self.y += 30

    # Lines

    def path(self, kind: str, d: str, *, head: bool = True) -> str:
        """Give a line, with an arrowhead at its end."""
        marker = f' marker-end="url(#flow-{self.picture}-{kind})"' if head else ""
        return f'<path class="{kind}" d="{d}"{marker}/>'

    def arrow(self, text: Text = "", *, stream: bool = False) -> None:
        """Go down to the next thing, past what goes along."""
        height = 28 if text else 18
        kind = "stream" if stream else "line"
        self.behind.append(self.path(kind, f"M{MIDDLE} {self.y:g}V{self.y + height:g}"))
        if text:
            self.parts.append(self.text(MIDDLE + 10, self.y + 18, text, "quiet"))
        self.y += height

    def down(self, text: Text = "", *, stream: bool = False) -> None:
        """Go down without arriving: the line enters a frame or a fork."""
        height = 28 if text else 14
        kind = "stream" if stream else "line"
        self.behind.append(self.path(kind, f"M{MIDDLE} {self.y:g}V{self.y + height:g}", head=False))
        if text:
            self.parts.append(self.text(MIDDLE + 10, self.y + 18, text, "quiet"))
        self.y += height

    @contextmanager
    def frame(
        self, name: str, text: Text, *, outer: bool = False, part: str = "", count: int | None = None
    ) -> Iterator[None]:
        """Draw a component around its parts."""
        left, right = (2, WIDTH - 2) if outer else (12, RIGHT + 8)
        top = self.y
        inside = [
            _rect("tab", left + 3, top + 3, MIDDLE - 8 - left, 28),
            self.text(left + 8, top + 21, name, "name"),
        ]
        self.linked(name, text, inside, part, count)
        self.parts.append(self.text(right - 10, top + 21, text, "end"))
        self.y += 34
        self.behind.append(self.path("stream" if outer else "line", f"M{MIDDLE} {top:g}V{self.y:g}", head=False))
        yield
        self.down(stream=outer)
        self.behind.insert(0, _rect("frame", left, top, right - left, self.y - top, 10))

    @contextmanager
    def added(self, *, fork: bool = True) -> Iterator[None]:
        """Let the stream go around what is drawn inside, and add the two; without a fork, all of it goes around."""
        top = self.y
        if fork:
            self.parts.append(f'<circle class="dot" cx="{MIDDLE}" cy="{top:g}" r="3.5"/>')
            self.arrow()
        else:
            self.y += 14
        yield
        self.arrow()
        centre = self.y + 10
        self.behind.append(
            self.path(
                "stream",
                f"M{MIDDLE} {top:g}H{AROUND - 10}a10 10 0 0 1 10 10V{centre - 10:g}a10 10 0 0 1 -10 10H{MIDDLE + 12}",
            )
        )
        self.parts.append(f'<circle class="sum" cx="{MIDDLE}" cy="{centre:g}" r="10"/>')
        self.parts.append(f'<path class="stream" d="M{MIDDLE - 5} {centre:g}h10m-5 -5v10"/>')
        self.y = centre + 10


def _rect(kind: str, x: float, y: float, width: float, height: float, radius: float = 5) -> str:
    return (
        f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
        f'rx="{min(radius, height / 2):g}"/>'
    )


def _cell(x: float, y: float, width: float, height: float, value: float, most: float, *, full: float = 0.5) -> str:
    """Give one cell: the colour says the sign, its strength the size."""
    kind = "plus" if value >= 0 else "minus"
    opacity = full * min(abs(value) / most, 1)
    return (
        f'<rect class="{kind}" x="{x + 0.5:g}" y="{y + 0.5:g}" width="{width - 1:g}" height="{height - 1:g}" '
        f'fill-opacity="{opacity:.3f}"><title>{value:.6f}</title></rect>'
    )


def _number(value: float, digits: int) -> str:
    """Write a number as in print, with a minus sign and no minus before a zero."""
    text = f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("-", "−")
