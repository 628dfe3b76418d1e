"""`python -m website.strength_page`: the page of the suite's strength, from what `make strength` measured."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from reference.components import COMPONENTS
from spec_tests.pitfalls.pitfall import equivalences, pitfalls
from spec_tests.pitfalls.strength import RECORD, percent
from website.said import said
from website.staging import DOCS
from website.words import LANGUAGES

KINDS = ("properties", "comparison", "gradients")
"""The kinds of checks that the record counts for each mistake."""

WORDS: dict[str, dict[str, str]] = {
    "en": {
        "title": "How strong the suite is",
        "intro": "Written by `make strength`, which puts every property to every known mistake that it could be\n"
        "about, with up to {inputs} inputs (seed {seed}), and measures our own errors against their bounds.",
        "caught": "{caught} of {all} coded mistakes are caught ({percent})",
        "properties": "{count} of them by properties alone ({percent})",
        "comparison": "{count} of them by the comparison with the reference ({percent})",
        "gradients": "{count} of them by properties of gradients ({percent})",
        "alarms": "{alarms} false alarms on {all} look-alikes",
        "margin": "{examples} fresh examples on the two backends: the largest error is {share} of its bound, of which\n"
        "  {allowed} is allowed (`{id}`, {backend})",
        "mistakes": "What catches each mistake",
        "kinds": "A property needs no oracle: it states something true. The comparison is that with the NumPy\n"
        "reference. Gradients are those that a mistake comes with; most are made in the forward pass alone.",
        "mistakes_head": "mistake | what the code does | properties | comparison | gradients | caught first by",
        "nothing": "**nothing**",
        "golden": "What only a value from elsewhere can tell",
        "no_golden": "Nothing.",
        "alike": "What looks like a mistake and is none",
        "holds": "Holds {condition}: {verdict}.",
        "passes": "passes",
        "fails": "**fails {properties}**",
        "nearest": "The errors of our own backends that come nearest to their bounds",
        "nearest_head": "property | backend | largest error, of its bound | examples",
        "idle": "Properties that catch none of these mistakes",
        "idle_why": "{count} properties of components with coded mistakes caught none of them. Each has been seen to\n"
        "fail all the same, on code broken on purpose for it (`spec_tests/meta/faults_*.py`): they watch for mistakes\n"
        "that nobody has reported yet, refusals of bad input most of all.",
        "comma": ", ",
        "colon": ": ",
        "gap": " ",
    },
    "zh": {
        "title": "测试集有多强",
        "intro": "本页由 `make strength` 写成：它把每一条性质用在与之可能有关的每一个已知错误上"
        "（每条性质最多 {inputs} 个输入，种子 {seed}），并量出两个后端自己的误差离界限有多远。",
        "caught": "{all} 个写成代码的错误中，发现了 {caught} 个（{percent}）",
        "properties": "其中仅凭性质就能发现的有 {count} 个（{percent}）",
        "comparison": "与参考实现比较能发现的有 {count} 个（{percent}）",
        "gradients": "梯度的性质能发现的有 {count} 个（{percent}）",
        "alarms": "{all} 个看似错误的写法中，误报 {alarms} 个",
        "margin": "在两个后端上新取了 {examples} 个样本：最大误差是其界限的 {share} 倍，允许 {allowed} 倍"
        "（`{id}`，{backend}）",
        "mistakes": "每个错误由谁发现",
        "kinds": "性质不需要参照物：它说的是一件本来就成立的事。“比较”指与 NumPy 参考实现比较。"
        "“梯度”指错误自带的梯度；多数错误只发生在前向计算里。",
        "mistakes_head": "错误 | 代码做了什么 | 性质 | 比较 | 梯度 | 最先由谁发现",
        "nothing": "**没有**",
        "golden": "只有外来的数值才能看出的错误",
        "no_golden": "没有。",
        "alike": "看起来像错误、其实不是",
        "holds": "成立条件：{condition}；{verdict}。",
        "passes": "通过",
        "fails": "**没有通过 {properties}**",
        "nearest": "两个后端的误差中离界限最近的",
        "nearest_head": "性质 | 后端 | 最大误差与界限之比 | 样本数",
        "idle": "没有发现以上任何错误的性质",
        "idle_why": "有 {count} 条性质，其组件有写成代码的错误，却一个也没有发现。每一条都另在故意改坏的代码上"
        "（`spec_tests/meta/faults_*.py`）失败过：它们防的是还没有人报告过的错误，尤其是该拒绝的输入没有被拒绝。",
        "comma": "、",
        "colon": "：",
        "gap": "",
    },
}


def page(record: dict[str, Any], language: str) -> str:
    """Write the page in one language."""
    w = WORDS[language]
    title = "# " + w["title"]
    parts = [title, w["intro"].format(**record), "\n".join(_figures(record, w))]
    parts += [f"## {w['mistakes']}", w["kinds"], _mistakes(record, language)]
    golden = [p for p in pitfalls() if p.golden]
    listed = [f"- `{p.id}`{w['colon']}{said(p.golden, language)}" for p in golden]
    parts += [f"## {w['golden']}", "\n".join(listed) or w["no_golden"]]
    parts += [f"## {w['alike']}", "\n".join(_look_alikes(record, language))]
    nearest = (f"`{m['id']}` | {m['backend']} | {m['share']:.3f} | {m['examples']:,}" for m in record["nearest"])
    parts += [f"## {w['nearest']}", _table(w["nearest_head"], "--- | --- | ---: | ---:", nearest)]
    idle = [f"- `{name}`{w['colon'] if any(cases) else ''}{w['comma'].join(cases)}"
            for name, cases in _folded(record["idle"])]  # fmt: skip
    parts += [f"## {w['idle']}", w["idle_why"].format(count=len(record["idle"])), "\n".join(idle)]
    return "\n\n".join(parts) + "\n"


def _figures(record: dict[str, Any], w: dict[str, str]) -> Iterator[str]:
    n, worst = len(record["caught"]), record["nearest"][0]
    caught = sum(bool(c["first"]) for c in record["caught"])
    yield "- " + w["caught"].format(caught=caught, all=n, percent=percent(caught, n))
    for kind in KINDS:
        count = sum(bool(c[kind]) for c in record["caught"])
        yield "- " + w[kind].format(count=count, percent=percent(count, n))
    alarms = sum(bool(alike["fails"]) for alike in record["look_alikes"])
    yield "- " + w["alarms"].format(alarms=alarms, all=len(record["look_alikes"]))
    yield "- " + w["margin"].format(
        examples=f"{record['examples']:,}",
        share=f"{worst['share']:.3f}",
        allowed=record["allowed"],
        id=worst["id"],
        backend=worst["backend"],
    )


def _mistakes(record: dict[str, Any], language: str) -> str:
    w, known = WORDS[language], {pitfall.id: pitfall for pitfall in pitfalls()}
    rows = []
    for c in record["caught"]:
        pitfall = known[c["id"]]
        name = f"`{pitfall.id}`"
        if pitfall.component in COMPONENTS:
            name = f"[{name}](../components/{pitfall.component}.md#{pitfall.id.split('.', 1)[1]})"
        counts = " | ".join(str(c[kind] or "·") for kind in KINDS)
        first = f"`{c['first']}`" if c["first"] else w["nothing"]
        rows.append(f"{name} | {_cell(said(pitfall.does, language))} | {counts} | {first}")
    return _table(w["mistakes_head"], "--- | --- | ---: | ---: | ---: | ---", rows)


def _look_alikes(record: dict[str, Any], language: str) -> Iterator[str]:
    w, known = WORDS[language], {alike.id: alike for alike in equivalences()}
    for alike in record["look_alikes"]:
        e, fails = known[alike["id"]], w["comma"].join(alike["fails"])
        verdict = w["fails"].format(properties=fails) if fails else w["passes"]
        holds = w["holds"].format(condition=said(e.condition, language), verdict=verdict)
        yield f"- `{e.id}`{w['colon']}{said(e.says, language)}{w['gap']}{holds}"


def _folded(ids: Iterable[str]) -> Iterable[tuple[str, list[str]]]:
    """Give each property's name with its cases."""
    cases: dict[str, list[str]] = {}
    for prop_id in ids:
        component, name, *case = prop_id.split(".")
        cases.setdefault(f"{component}.{name}", []).extend(case)
    return cases.items()


def _table(head: str, rule: str, rows: Iterable[str]) -> str:
    return "\n".join(f"| {row} |" for row in (head, rule, *rows))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Write the page in every language."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    for language in LANGUAGES:
        (DOCS / language / "check" / "strength.md").write_text(page(record, language), encoding="utf-8")


if __name__ == "__main__":
    main()
