"""What the site is built of: both languages alike, a page for every component, and faults that stop the build."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import reference.numpy
from reference.components import COMPONENTS
from spec_tests.kit.describe import properties
from spec_tests.pitfalls.pitfall import equivalences, pitfalls
from spec_tests.pitfalls.strength import RECORD
from spec_tests.subjects.contract import VJP, is_gradient
from website import check, live, strength_page
from website.component_pages import Component
from website.said import chinese, said
from website.sources import code
from website.staging import DIRECTIVE, DOCS, FENCED, FIGURE, LINK, PARTS, Page, PageError, Site, pages
from website.words import LANGUAGES, STEMS, WORDS

ENGLISH_ONLY = ("decisions", "reference")
"""What has no Chinese: how this project was made, and the contract."""


def _paths(language: str) -> set[str]:
    paths = {page.path for page in pages(language, Site(set()))}
    return {path for path in paths if not path.startswith(ENGLISH_ONLY)}


def _text(language: str, path: str) -> str:
    return (DOCS / language / path).read_text(encoding="utf-8")


def _structure(language: str, path: str) -> dict[str, list]:
    """Give what must be alike in both languages."""
    text = _text(language, path)
    blocks = [match[0] for match in FENCED.finditer(text)]
    prose = FENCED.sub("", text)
    return {
        "headings": [len(m[1]) for m in re.finditer(r"^(#+) ", prose, re.MULTILINE)],
        "code": blocks,
        "directives": [m[0] for m in DIRECTIVE.finditer(prose)],
        "figures": [m[2] for m in FIGURE.finditer(prose)],
        "links": sorted(_target(m[2]) for m in LINK.finditer(prose)),
        "formulas": re.findall(r"^\$\$\n(.+?)\n\$\$$", prose, re.MULTILINE | re.DOTALL),
    }


def _target(link: str) -> str:
    """Give the file that a link names, without the way to it and its anchor, which are another language's."""
    return link.split("#")[0].rsplit("/", 1)[-1] if "://" not in link else link


def test_both_languages_have_the_same_pages() -> None:
    """What is written in English is written in Chinese too."""
    assert _paths("en") == _paths("zh")


@pytest.mark.parametrize("path", sorted(_paths("en")))
def test_a_page_is_built_alike_in_both_languages(path: str) -> None:
    """Headings, code, directives, figures, formulas and links are the same; only the words differ."""
    english, chinese = (_structure(language, path) for language in LANGUAGES)
    for kind, parts in english.items():
        assert chinese[kind] == parts, kind


@pytest.mark.parametrize("name", COMPONENTS)
def test_every_component_has_a_whole_page(name: str) -> None:
    """A component's page has every part that is taken from the sources, in order; a gradient where there is one."""
    wanted = [part for part in PARTS if part != "gradient" or is_gradient(name + VJP)]
    for language in LANGUAGES:
        found = [m[1] for m in DIRECTIVE.finditer(_text(language, f"components/{name}.md"))]
        assert found == wanted, language
        assert f"`{name}`" in _text(language, f"components/{name}.md")


def test_chinese_pages_are_in_chinese() -> None:
    """More than half of the letters of each Chinese page's prose are Chinese characters, code left out."""
    for path in sorted(_paths("zh")):
        prose = re.sub(r"`[^`]*`|\$[^$]*\$|\]\([^)]*\)|<[^>]*>|\{\{.*\}\}", "", FENCED.sub("", _text("zh", path)))
        han, latin = len(re.findall(r"[\u4e00-\u9fff]", prose)), len(re.findall(r"[A-Za-z]+", prose))
        assert han > latin, f"{path}: {han} characters, {latin} words of Latin letters"


def test_both_languages_have_all_words() -> None:
    """What the generated parts say is said in both languages, with the same places to fill."""
    assert WORDS["en"].keys() == WORDS["zh"].keys()
    assert STEMS["en"].keys() == STEMS["zh"].keys() == {c.stem for c in COMPONENTS.values()}
    for key, english in WORDS["en"].items():
        assert set(re.findall(r"\{\w+\}", english)) == set(re.findall(r"\{\w+\}", WORDS["zh"][key])), key


def _sentences() -> set[str]:
    """Give what the code says that pages show: properties, mistakes, look-alikes."""
    shown = {prop.sentence for name in COMPONENTS for prop in properties(name)}
    shown |= {text for p in pitfalls() for text in (p.does, p.shows, p.mend, p.golden) if text}
    return shown | {text for e in equivalences() for text in (e.says, e.condition)}


def test_every_sentence_of_the_code_has_its_chinese() -> None:
    """Each property and mistake is said in Chinese, and no translation is left of a sentence that has changed."""
    missing, stale = _sentences() - chinese().keys(), chinese().keys() - _sentences()
    assert not missing, "no Chinese in website/chinese for:\n" + "\n".join(sorted(missing))
    assert not stale, "no property or mistake says any more:\n" + "\n".join(sorted(stale))


def test_the_chinese_of_a_sentence_keeps_its_code_and_formulas() -> None:
    """What stands in backticks or dollars is the same in both languages, and the rest is Chinese."""
    for english, translated in chinese().items():
        for part in (r"`[^`]+`", r"\$\$.+?\$\$"):
            assert sorted(re.findall(part, english)) == sorted(re.findall(part, translated)), english
        assert re.search(r"[\u4e00-\u9fff]", translated), english


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_of_the_suites_strength_is_what_was_measured(language: str) -> None:
    """The page says what the record of `make strength` says, in today's words."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    assert _text(language, "check/strength.md") == strength_page.page(record, language)


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_a_component_page_says_is_in_the_sources(language: str) -> None:
    """The parts of a page hold the formula, both sources, every property's sentence and every mistake."""
    norm = Component("layer_norm", language, lambda url: url)
    assert r"\frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}}" in norm.formula()
    assert "np.sqrt(squares / n + eps)" in norm.sources()
    assert "functional.layer_norm" in norm.sources()
    assert "class LayerNorm" in norm.sources()
    assert "| `eps` | `float` | `1e-05` |" in norm.shapes()
    assert said("Before gain and bias, the mean of each vector is 0.", language) in norm.properties()
    assert "`layer_norm.unbiased_std`" in norm.pitfalls()
    assert "along_y" in norm.gradient()


def test_code_is_shown_with_the_private_parts_that_it_needs() -> None:
    """A shown function stands without its docstring, with the helpers of its module below it."""
    shown = code(reference.numpy.norms, "layer_norm")
    assert shown.startswith("def layer_norm(")
    assert "def _normed(" in shown
    assert '"""' not in shown


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{{ nonsense }}", "no directive"),
        ("{{ formula no_such_component }}", "needs a component"),
        ("{{ gradient causal_mask }}", "components/softmax.md: causal_mask has no gradient in the contract; leave out"),
        ("![a picture](/figures/none.svg)", "no figure"),
        ("![ ](/figures/known.svg)", "alternative text"),
        ("[there](nowhere.md)", "leads nowhere"),
    ],
)
def test_a_fault_in_a_page_stops_the_build(text: str, problem: str) -> None:
    """An unknown directive or figure, a missing alternative text and a broken link are errors that name the page."""
    page = Page("en", "components/softmax.md", Site({"known"}))
    with pytest.raises(PageError, match=problem):
        page.expanded(text)


def test_code_is_left_alone() -> None:
    """What stands in a block of code is no link, figure or directive."""
    block = "```python\n{{ formula }} [x](y.md)\n![a](/figures/none.svg)\n```"
    assert Page("en", "components/softmax.md", Site(set())).expanded(block) == block


@pytest.mark.parametrize(
    ("path", "target", "link"),
    [
        ("components/softmax.md", "reference/glossary/", "../reference/glossary/"),
        ("index.md", "reference/glossary/", "reference/glossary/"),
        ("check/index.md", "specification/norms/#test_x", "../specification/norms/#test_x"),
    ],
)
def test_links_lead_from_where_a_page_stands(path: str, target: str, link: str) -> None:
    """A URL of the site is given from the page's folder; from a Chinese page it goes one up."""
    assert Page("en", path, Site(set())).link(target) == link
    assert Page("zh", path, Site(set())).link(target) == "../" + link


def test_broken_links_of_a_site_are_found(tmp_path: Path) -> None:
    """The check names a missing page, a missing anchor, a picture without words and an asset from elsewhere."""
    (tmp_path / "index.html").write_text(
        '<a href="a/">a</a><a href="#none">b</a><img src="x.svg"><script src="https://example.org/x.js"></script>'
        '<a href="https://example.org">fine</a><p id="here"></p><a href="#here">fine</a>'
    )
    found = check.problems(tmp_path)
    assert len(found) == 5  # the picture is missing, too
    for part in (
        "a/ does not exist",
        "#none has no such anchor",
        "without alternative",
        "x.svg does not",
        "loads https",
    ):
        assert any(part in problem for problem in found), part


@pytest.mark.parametrize("name", live.TITLES["en"])
def test_the_experiments_of_the_live_page_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is a program that says what its description promises, whatever numbers it draws."""
    runpy.run_path(str(live.EXPERIMENTS / f"{name}.py"), run_name="__main__")
    said = capsys.readouterr().out
    if name == "break_layer_norm":
        assert re.search(r"the reference: .*\n  holds on 200 inputs\n\nmine: .*\n  fails on \d+ of 200", said)
    elif name == "shuffle_tokens":
        plain, positions, causal = said.splitlines()[1:]
        assert "shuffled output: True; the same output: False" in plain
        assert "True" not in positions + causal
    else:
        entropies = [float(e) for e in re.findall(r"entropy (\d+\.\d+)", said)]
        assert entropies == sorted(entropies)
        assert entropies[0] < 0.2 < 2.5 < entropies[-1]


def test_a_live_page_without_python_says_so() -> None:
    """Where Python for the browser could not be had, the page says so and shows the programs."""
    for language in LANGUAGES:
        said = live.page_part(language, "assets/", there=False)
        assert live.WORDS[language]["none"] in said
        assert "<script" not in said
        assert said.count("```text") == 3


def test_building_needs_no_docs_of_others() -> None:
    """`website` imports without the packages of the extra `docs`: the tests above run where only `dev` is installed."""
    hidden = "import sys; sys.modules.update(dict.fromkeys(['zensical', 'mkdocstrings', 'playwright']));"
    subprocess.run([sys.executable, "-c", f"{hidden} import website.build"], check=True, cwd=DOCS.parent)
