"""The claims of the two tutorials as Markdown: each with its verdict, what is so, and the test that decides."""

import tomllib
from collections import Counter
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1] / "spec_tests"
TESTS = "spec_tests/test_claims.py"

KINDS = {"holds": "success", "holds if": "warning", "wrong": "failure"}
"""Each verdict with the kind of admonition that it gets: a colour and a sign, beside the words."""

WORDS = {
    "en": {
        "holds": "Holds.",
        "holds if": "Holds if",
        "wrong": "Wrong: in fact",
        "000": "The NumPy Tiny Transformer (tutorial 000)",
        "001": "The PyTorch Mini Transformer (tutorial 001)",
        "test": "Test",
        "source": "Source",
        "sources": "Sources",
        "colon": ": ",
        "comma": ", ",
        "summary": "Of {all} claims, {holds} hold, {holds_if} hold under a condition, and {wrong} are wrong. "
        "These are wrong:",
    },
    "zh": {
        "holds": "成立。",
        "holds if": "有条件成立：",
        "wrong": "不成立：",
        "000": "NumPy Tiny Transformer（教程 000）",
        "001": "PyTorch Mini Transformer（教程 001）",
        "test": "测试",
        "source": "来源",
        "sources": "来源",
        "colon": "：",
        "comma": "，",
        "summary": "{all} 条说法中，{holds} 条成立，{holds_if} 条在一定条件下成立，{wrong} 条不成立。不成立的是：",
    },
}


def read() -> list[dict[str, Any]]:
    """Read the claims, in their order."""
    return tomllib.loads((HOME / "claims.toml").read_text(encoding="utf-8"))["claim"]


def claims(language: str, source_link: Callable[[str, str], str]) -> str:
    """Give the page's part: a summary, and for each tutorial and section its claims.

    `source_link` gives the address of a test from its file and name.
    """
    words, known = WORDS[language], read()
    parts = [_summary(known, language)]
    for seed, of_seed in groupby(known, key=lambda claim: claim["seed"]):
        parts.append(f"## {words[seed]}")
        for section, of_section in groupby(of_seed, key=lambda claim: claim[f"section_{language}"]):
            parts.append(f"### {section}")
            parts += [_claim(claim, language, source_link) for claim in of_section]
    return "\n\n".join(parts)


def _summary(known: list[dict[str, Any]], language: str) -> str:
    counts = Counter(claim["verdict"] for claim in known)
    line = WORDS[language]["summary"].format(
        all=len(known), holds=counts["holds"], holds_if=counts["holds if"], wrong=counts["wrong"]
    )
    wrong = [claim for claim in known if claim["verdict"] == "wrong"]
    return "\n".join([line, "", *(f'- <a href="#{_anchor(c)}">{c[f"claim_{language}"]}</a>' for c in wrong)])


def _claim(claim: dict[str, Any], language: str, source_link: Callable[[str, str], str]) -> str:
    words, verdict, test = WORDS[language], claim["verdict"], claim["test"]
    gap = " " if language == "en" else ""
    decided = [f'{words["test"]}{words["colon"]}<a href="{source_link(TESTS, test)}"><code>{test}</code></a>']
    if sources := claim.get("sources"):
        label = words["source" if len(sources) == 1 else "sources"]
        links = words["comma"].join(f"[{source['text']}]({source['url']})" for source in sources)
        decided.append(f"{label}{words['colon']}{links}")
    return "\n".join(
        [
            f'<div class="claim" id="{_anchor(claim)}" markdown>',
            "",
            f'!!! {KINDS[verdict]} "{claim[f"claim_{language}"]}"',
            "",
            f"    **{words[verdict]}**{gap}{claim[f'fact_{language}']}",
            "",
            *(f"    {line}  " for line in decided),
            "",
            "</div>",
        ]
    )


def _anchor(claim: dict[str, Any]) -> str:
    return f"claim-{claim['id']}"
