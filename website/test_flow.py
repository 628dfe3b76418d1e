"""The pictures of the data flow show what the reference computes; the home page quotes what is printed."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from functools import cache
from math import sqrt

import numpy as np
import pytest

import reference.numpy as meaning
from reference.components import COMPONENTS
from reference.config import MINI, TINY
from reference.parameters import init_params, tutorial_000_params
from website import flow
from website.sources import ROOT

SVG = "{http://www.w3.org/2000/svg}"
EACH = [("tiny", "en"), ("tiny", "zh"), ("mini", "en"), ("mini", "zh")]
each_picture = pytest.mark.parametrize(("name", "language"), EACH)
both_languages = pytest.mark.parametrize("language", ["en", "zh"])
IDS = np.array([3, 8, 2, 6])


@cache
def drawn(name: str, language: str) -> ElementTree.Element:
    """Give the tree of a picture."""
    return ElementTree.fromstring(flow.flow(name, language, lambda component: f"../components/{component}/?a=1&b=2"))


def links(picture: ElementTree.Element) -> list[ElementTree.Element]:
    """Give the links of a picture, in order."""
    return list(picture.iter(f"{SVG}a"))


def texts(element: ElementTree.Element) -> list[str]:
    """Give what is written."""
    return [text.text for text in element.iter(f"{SVG}text")]


def array(picture: ElementTree.Element, name: str) -> ElementTree.Element:
    """Give the group that shows an array."""
    (group,) = (g for g in picture.iter(f"{SVG}g") if g.get("data-array") == name)
    return group


# ------------------------------------------------------------------------------------------ form


@each_picture
def test_it_is_one_block_of_html(name, language) -> None:
    """It parses as XML, has no blank line, which would end the block in Markdown, and no id twice."""
    html = flow.flow(name, language, str)
    picture = ElementTree.fromstring(html)
    ids = [element.get("id") for element in picture.iter() if element.get("id")]
    assert (picture.tag, [child.tag for child in picture]) == ("div", [f"{SVG}svg"])
    assert all(line.strip() for line in html.splitlines())
    assert len(set(ids)) == len(ids)


def test_both_pictures_stand_on_one_page() -> None:
    """The two have no id in common."""
    tiny, mini = ({e.get("id") for e in drawn(name, "en").iter() if e.get("id")} for name in ("tiny", "mini"))
    assert tiny
    assert not tiny & mini


@each_picture
def test_it_can_be_heard(name, language) -> None:
    """Title and description are named by the picture; each array is an image with a label."""
    picture = drawn(name, language)
    (svg,) = picture
    named = {e.get("id"): e.text for e in picture.iter() if e.tag in (f"{SVG}title", f"{SVG}desc") and e.get("id")}
    assert named[svg.get("aria-labelledby")]
    assert named[svg.get("aria-describedby")]
    assert all(group.get("aria-label") and group.get("role") == "img" for group in picture.iter(f"{SVG}g"))


@each_picture
def test_text_is_12_pixels_on_a_phone(name, language) -> None:
    """At 390 px a page leaves 358 for the picture: no size of text may fall below 12 px there."""
    html = flow.flow(name, language, str)
    width = float(re.search(r'viewBox="0 0 (\S+) ', html)[1])
    sizes = [float(size) for size in re.findall(r"font-size: *([\d.]+)px", html)]
    assert len(sizes) == 4
    assert "font-size=" not in html
    assert min(sizes) * 358 / width >= 12


# ------------------------------------------------------------------------------------------ links


@each_picture
def test_every_box_leads_to_its_component(name, language) -> None:
    """A box is a link to the page of the component whose name it shows and says."""
    picture = drawn(name, language)
    boxes = [rect for rect in picture.iter(f"{SVG}rect") if rect.get("class") == "box"]
    inside = [rect for a in links(picture) for rect in a.iter(f"{SVG}rect") if rect.get("class") == "box"]
    assert len(boxes) == len(inside) > 0
    for a in links(picture):
        component = a.get("data-component")
        assert component in COMPONENTS
        assert a.get("href") == f"../components/{component}/?a=1&b=2"
        assert a.get("aria-label").startswith(component)
        assert texts(a)[0] == component


@pytest.mark.parametrize("name", ["tiny", "mini"])
def test_both_languages_lead_to_the_same(name) -> None:
    """The Chinese picture has the links, the numbers and the counts of the English one, in its order."""
    english, chinese = drawn(name, "en"), drawn(name, "zh")

    def same(picture):
        return (
            [(a.get("href"), a.get("data-part"), a.get("data-count")) for a in links(picture)],
            [(g.get("data-array"), texts(g)) for g in picture.iter(f"{SVG}g")],
        )

    assert same(english) == same(chinese)
    assert texts(english) != texts(chinese)


BOTH = {
    "token_embedding", "add_positions", "sinusoidal_positions", "transformer_block", "layer_norm", "attention_weights",
    "scaled_dot_product_attention", "feed_forward", "output_head",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("tiny", BOTH | {"self_attention", "relu"}),
        ("mini", BOTH | {"multi_head_attention", "gelu", "dropout", "parameter_count"}),
    ],
)
def test_the_whole_way_is_drawn(name, parts) -> None:
    """Every component that the model is made of has a box."""
    assert {a.get("data-component") for a in links(drawn(name, "en"))} == parts


# ------------------------------------------------------------------------------------------ TINY's numbers


@cache
def tiny_arrays() -> dict[str, np.ndarray]:
    """Compute what the picture shows, apart from how it does: formulas for components, components for formulas."""
    params = tutorial_000_params()

    def normed(x):
        return meaning.layer_norm(x, None, None, eps=TINY.norm.eps, variant=TINY.norm.variant)

    vectors = params["token_embedding"]["table"][IDS]
    positions = meaning.add_positions(0 * vectors, meaning.sinusoidal_positions(4, 8))
    x, arrays = vectors + positions, {"vectors": vectors, "positions": positions}
    arrays["stream_0"] = x
    for index, block in enumerate(params["blocks"]):
        w, mlp = block["attention"], block["mlp"]
        weights = meaning.softmax((x @ w["w_q"]) @ (x @ w["w_k"]).T / sqrt(8))
        attended = meaning.multi_head_attention(x, **w, w_o=None, n_heads=1)
        halfway = normed(x + attended)
        hidden = np.maximum(halfway @ mlp["w_1"] + mlp["b_1"], 0)
        thought = hidden @ mlp["w_2"] + mlp["b_2"]
        x = normed(halfway + thought)
        arrays[f"stream_{index + 1}"] = x
        if index == 0:
            arrays |= {
                "weights": weights,
                "attended": attended,
                "normed": halfway,
                "hidden": hidden,
                "thought": thought,
            }
    arrays["logits"] = meaning.output_head(x, **params["output_head"])
    np.testing.assert_allclose(arrays["logits"], meaning.transformer(IDS, params, TINY), rtol=0, atol=1e-14)
    return arrays


@both_languages
def test_tiny_shows_the_numbers_of_the_reference(language) -> None:
    """Every cell and every bar holds its number, to 6 digits; every array of the model is there."""
    picture, expected = drawn("tiny", language), tiny_arrays()
    shown = {g.get("data-array") for g in picture.iter(f"{SVG}g")}
    assert shown == {*expected, "ids", "argmax"}
    for name, numbers in expected.items():
        held = [float(title.text) for title in array(picture, name).iter(f"{SVG}title")]
        np.testing.assert_allclose(held, numbers.ravel(), rtol=0, atol=5.01e-7, err_msg=name)


@both_languages
@pytest.mark.parametrize(
    ("name", "digits"),
    [
        ("vectors", 2),
        ("positions", 2),
        ("stream_0", 2),
        ("weights", 4),
        ("normed", 2),
        ("stream_1", 2),
        ("stream_2", 2),
    ],
)
def test_tiny_prints_them_rounded(language, name, digits) -> None:
    """A row is its label, then its numbers with a minus sign of print, none before a zero; the label reads them out."""
    group, numbers = array(drawn("tiny", language), name), tiny_arrays()[name]
    written = texts(group)
    width = numbers.shape[1] + 1
    rows = [written[start : start + width] for start in range(0, len(written), width)]
    assert [row[0] for row in rows] == (["0", "1", "2", "3"] if name == "positions" else ["3", "8", "2", "6"])
    values = [[float(number.replace("−", "-")) for number in row[1:]] for row in rows]
    np.testing.assert_allclose(values, numbers, rtol=0, atol=0.5001 * 10**-digits)
    assert all(re.fullmatch(rf"−?\d\.\d{{{digits}}}", number) for row in rows for number in row[1:])
    assert not any(re.fullmatch(r"−0\.0+", number) for row in rows for number in row[1:])
    assert group.get("aria-label").endswith("; ".join(" ".join(row[1:]) for row in rows))


@both_languages
def test_colour_says_sign_and_size(language) -> None:
    """A cell has the colour of its sign, and the stronger one where the number is further from 0."""
    picture, expected = drawn("tiny", language), tiny_arrays()
    for name in set(expected) - {"logits"}:
        cells = list(array(picture, name).iter(f"{SVG}rect"))
        numbers = expected[name].ravel()
        strengths = np.array([float(cell.get("fill-opacity")) for cell in cells])
        assert [cell.get("class") for cell in cells] == ["plus" if number >= 0 else "minus" for number in numbers]
        most = np.abs(numbers).max()
        np.testing.assert_allclose(strengths, strengths.max() * np.abs(numbers) / most, rtol=0, atol=2e-3, err_msg=name)
        assert 0 < strengths.max() <= 1


@both_languages
def test_tiny_ends_at_5_5_4_3(language) -> None:
    """The ids are 3, 8, 2, 6; the bar that is marked is the largest of its row, and they stand at 5, 5, 4, 3."""
    picture = drawn("tiny", language)
    bars = [bar.get("class") for bar in array(picture, "logits").iter(f"{SVG}rect")]
    marked = [i for i, kind in enumerate(bars) if kind == "most"]
    logits = meaning.transformer(IDS, tutorial_000_params(), TINY)
    assert texts(array(picture, "ids")) == ["3", "8", "2", "6"]
    assert texts(array(picture, "argmax")) == ["5", "5", "4", "3"]
    assert [i % 10 for i in marked] == [5, 5, 4, 3] == logits.argmax(axis=-1).tolist()
    assert [i // 10 for i in marked] == [0, 1, 2, 3]


@both_languages
def test_bars_are_as_high_as_their_numbers(language) -> None:
    """A bar ends where its number is: heights are the numbers' sizes times one factor, up for what is positive."""
    group, logits = array(drawn("tiny", language), "logits"), tiny_arrays()["logits"]
    bars = list(group.iter(f"{SVG}rect"))
    heights = np.array([float(bar.get("height")) for bar in bars]).reshape(logits.shape)
    tops = np.array([float(bar.get("y")) for bar in bars]).reshape(logits.shape)
    factor = heights.max() / np.abs(logits).max()
    np.testing.assert_allclose(heights, factor * np.abs(logits), rtol=0, atol=0.11)
    zeros = [float(re.search(r"M\d+ ([\d.]+)H", path.get("d"))[1]) for path in group.iter(f"{SVG}path")]
    np.testing.assert_allclose(np.where(logits >= 0, tops + heights, tops), np.c_[zeros] + 0 * logits, atol=0.11)


# ------------------------------------------------------------------------------------------ MINI's shapes and counts


@both_languages
def test_the_parts_of_mini_add_up(language) -> None:
    """What the boxes count is what their parameters are: a block of four parts, and 857,088 in all."""
    count = {a.get("data-part"): int(a.get("data-count")) for a in links(drawn("mini", language)) if a.get("data-part")}
    block = count["norm_1"] + count["multi_head_attention"] + count["norm_2"] + count["feed_forward"]
    assert block == count["transformer_block"] == 197_760
    total = count["token_embedding"] + MINI.n_layers * block + count["final_norm"] + count["output_head"]
    assert total == count["total"] == meaning.parameter_count(MINI) == 857_088


@both_languages
def test_what_mini_counts_is_written_in_its_boxes(language) -> None:
    """Every count stands in its box or beside the name of its frame, and in what is read out."""
    picture = drawn("mini", language)
    written = " ".join(texts(picture))
    for a in links(picture):
        if a.get("data-part"):
            count = f"{int(a.get('data-count')):,}"
            assert count in a.get("aria-label")
            assert count in written
    tally = [int(text.replace(",", "")) for text in texts(picture)[-9:] if re.fullmatch(r"[\d,]+", text)]
    assert sum(tally[:-1]) == tally[-1] == 857_088


@both_languages
def test_the_shapes_of_mini_are_those_of_a_run(language) -> None:
    """The shapes that are written are all of those that a run has, with its own batch and seq."""
    written = set(re.findall(r"\[[^]]*\]", " ".join(texts(drawn("mini", language)))))
    params = init_params(MINI, seed=1)
    logits = meaning.transformer(np.zeros((2, 5), int), params, MINI)
    assert logits.shape == (2, 5, 256)
    d, heads, d_k = MINI.d_model, MINI.n_heads, MINI.d_k
    assert (heads * d_k, d_k) == (d, 32)
    assert written == {
        "[batch, seq]", f"[seq, {d}]", f"[batch, seq, {d}]", f"[batch, {heads}, seq, {d_k}]",
        f"[batch, {heads}, seq, seq]", f"[batch, seq, {MINI.d_ff}]", f"[batch, seq, {MINI.vocab}]",
    }  # fmt: skip


# ------------------------------------------------------------------------------------------ the pages


@both_languages
def test_the_page_shows_both(language) -> None:
    """docs/<language>/flow.md has each picture once."""
    page = (ROOT / "docs" / language / "flow.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in page if line.startswith("{{")] == ["{{ flow tiny }}", "{{ flow mini }}"]


def words(text: str) -> str:
    """Give the text without its line breaks and numbers: those of a shrunk example may change with Hypothesis."""
    return re.sub(r"#[ ,#]*#", "#", re.sub(r"-?\d[\d.]*(e[+-]?\d+)?", "#", " ".join(text.split())))


def test_the_report_of_the_home_page_is_printed() -> None:
    """Each paragraph of the quoted report stands in what its command prints, in this order; in both languages."""
    pages = [(ROOT / "docs" / language / "index.md").read_text(encoding="utf-8") for language in ("en", "zh")]
    (command,) = re.findall(r"^\$ \.venv/bin/transformer-spec (.*)$", pages[0], re.MULTILINE)
    (quoted,) = re.findall(r"^```text\n(.*?)^```$", pages[0], re.MULTILINE | re.DOTALL)
    assert f"```text\n{quoted}```\n" in pages[1]
    assert command in pages[1]

    run = [sys.executable, "-m", "spec_tests.kit.cli", *command.split()]
    printed = words(subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=300).stdout)
    paragraphs = [words(paragraph) for paragraph in quoted.split("\n\n") if paragraph.strip() != "..."]
    assert len(paragraphs) > 5
    for paragraph in paragraphs:
        _, found, printed = printed.partition(paragraph)
        assert found, f"not printed, or not here: {paragraph}"
