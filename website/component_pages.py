"""The parts of a component's page that are taken from the sources: formula, code, shapes, properties, mistakes."""

import html
import importlib
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType

import reference.numpy
import reference.torch
from reference.components import COMPONENTS
from spec_tests.kit.describe import properties, shapes
from spec_tests.pitfalls.pitfall import Pitfall, equivalences, pitfalls
from spec_tests.spec import Property
from spec_tests.subjects.contract import VJP, is_gradient, signature
from website.effects import effect
from website.said import said
from website.sources import code, defines, place
from website.words import WORDS

Link = Callable[[str], str]
"""Give the URL of a page of the site, from the page that is being written."""


@dataclass(frozen=True)
class Component:
    """One page's component, in one language."""

    name: str
    language: str
    link: Link

    @property
    def words(self) -> dict[str, str]:
        """Give the language's words."""
        return WORDS[self.language]

    @property
    def halves(self) -> list[tuple[str, ModuleType]]:
        """Give both modules that define it, with the name that a tab shows."""
        stem = COMPONENTS[self.name].stem
        return [(title, importlib.import_module(f"reference.{half}.{stem}"))
                for title, half in (("NumPy", "numpy"), ("PyTorch", "torch"))]  # fmt: skip

    # ---------------------------------------------------------------------------------------- the parts

    def formula(self) -> str:
        """Give the formulas of its docstring."""
        return "\n\n".join(_formulas(inspect.getdoc(getattr(reference.numpy, self.name)) or ""))

    def sources(self) -> str:
        """Give NumPy, PyTorch and, where there is one, the module, as tabs."""
        tabs = [(title, module, self.name) for title, module in self.halves]
        torch_half = self.halves[1][1]
        module_name = "".join(part.title() for part in self.name.split("_"))
        if defines(torch_half, module_name):
            tabs.append((self.words["module"], torch_half, module_name))
        return "\n\n".join(self._tab(title, module, name) for title, module, name in tabs)

    def _tab(self, title: str, module: ModuleType, name: str) -> str:
        path, _ = place(module, name)
        return f'=== "{title}"\n\n' + _indented(f'```{{.python title="{path}"}}\n{code(module, name)}\n```')

    def shapes(self) -> str:
        """Give the table of arguments."""
        w = self.words
        defaults = {name: p.default for name, p in signature(self.name).parameters.items()}
        rows = []
        for argument, kind in shapes(self.name):
            default = defaults.get(argument, inspect.Parameter.empty)
            shown = "" if default is inspect.Parameter.empty else f"`{default!r}`"
            name = w["result"] if argument == "->" else f"`{argument}`"
            rows.append(f"| {name} | `{kind}` | {shown} |")
        head = [f"| {w['argument']} | {w['kind']} | {w['default']} |", "| --- | --- | --- |"]
        return "\n".join([*head, *rows, "", w["glossary"].format(glossary=self.link("reference/glossary/"))])

    def properties(self) -> str:
        """Give the tests' own sentences, those about this component first."""
        stated = properties(self.name)
        home = f"spec_tests.test_{COMPONENTS[self.name].stem}"
        own = [p for p in stated if p.function.__module__ == home]
        shared = [p for p in stated if p.function.__module__ != home]
        parts = []
        if own:
            parts += [self.words["own"].format(count=len(_by_function(own))), "", *self._sentences(own)]
        if shared:
            title = self.words["shared"].format(count=len(_by_function(shared)))
            parts += ["", f'??? note "{title}"', "", _indented("\n".join(self._sentences(shared)))]
        return "\n".join(parts)

    def _sentences(self, stated: list[Property]) -> Iterable[str]:
        for function, group in _by_function(stated).items():
            module, name = function
            url = self.link(f"specification/{module.removeprefix('spec_tests.test_')}/") + f"#{name}"
            cases = [f"`{p.id.split('.', 2)[2]}`" for p in group if p.id.count(".") > 1]
            notes = [self.words["cases"].format(cases=self.words["comma"].join(cases))] if cases else []
            if group[0].function.statement.oracle:
                notes.append(self.words["oracle"])
            if group[0].gradient:
                notes.append(self.words["about_gradient"])
            small = f" <small>({'; '.join(notes)})</small>" if notes else ""
            link = f'<a href="{url}"><code>{name.removeprefix("test_")}</code></a>'
            yield f"- {self._said(group[0].sentence)} {link}{small}"

    def pitfalls(self) -> str:
        """Give each mistake with what it does, how it shows, its measured effect, its mend and its sources."""
        known = pitfalls(self.name)
        parts = [self._pitfall(p) for p in known] or [self.words["no_pitfalls"]]
        alike = [e for e in equivalences() if e.component == self.name]
        if alike:
            parts += ["", self.words["look_alikes"], ""]
            holds = self.words["holds"]
            parts += [f"- {self._said(e.says)} {holds.format(condition=self._said(e.condition))}" for e in alike]
        return "\n".join(parts)

    def _pitfall(self, pitfall: Pitfall) -> str:
        w = self.words
        shows = w["says_how"].format(label=w["shows"], how=w[pitfall.visibility], text=self._said(pitfall.shows))
        rows = [shows, self._row("mend", self._said(pitfall.mend))]
        if measured := effect(pitfall):
            text = w[measured.kind].format(some=measured.some, all=measured.all, size=f"{measured.size:.2g}")
            rows.append(self._row("effect", text + w["stop"]))
        rows.append(self._row("caught", w["comma"].join(f"`{name.split('.')[-1]}`" for name in pitfall.caught_by)))
        rows.append(self._row("sources", w["comma"].join(map(_source, pitfall.sources))))
        title = self._said(pitfall.does).replace('"', "&quot;")
        body = _indented("\n\n".join(rows))
        anchor = pitfall.id.split(".", 1)[1]
        return f'??? bug "{title}"\n\n    <a id="{anchor}"></a>`{pitfall.id}`\n\n{body}\n'

    def _row(self, label: str, text: str) -> str:
        return self.words["says"].format(label=self.words[label], text=text)

    def _said(self, sentence: str) -> str:
        return _plain(said(sentence, self.language))

    def gradient(self) -> str:
        """Give the gradient's formulas, in English with the docstring's own words, and its source."""
        gradient = self.name + VJP
        if not is_gradient(gradient):
            raise ValueError(f"{self.name} has no gradient in the contract; leave out the section")
        document = inspect.getdoc(getattr(reference.numpy, gradient)) or ""
        said = [p for p in document.split("\n\n") if not p.startswith(("Raises ", "Source: "))]
        if self.language == "en":
            text = "\n\n".join("\n\n".join(_formulas(p)) or _plain(p) for p in said[1:] or said)
        else:
            text = "\n\n".join(_formulas(document))
        module = self.halves[0][1]
        path, _ = place(module, gradient)
        block = f'```{{.python title="{path}"}}\n{code(module, gradient)}\n```'
        return f'{text}\n\n??? abstract "{self.words["gradient_source"]}"\n\n{_indented(block)}'


def _formulas(document: str) -> list[str]:
    return [_on_its_lines(body) for body in re.findall(r"\$\$(.+?)\$\$", document, re.DOTALL)]


def _on_its_lines(body: str) -> str:
    return "$$\n" + " ".join(body.split()) + "\n$$"


def _plain(text: str) -> str:
    """Write text that is no Markdown as Markdown; formulas and code within it stay."""
    parts = re.split(r"(\$\$.+?\$\$|`[^`]+`)", text, flags=re.DOTALL)
    escaped = [part if i % 2 else re.sub(r"([*_\[\]])", r"\\\1", html.escape(part, quote=False))
               for i, part in enumerate(parts)]  # fmt: skip
    return " ".join("".join(escaped).split())


def _source(source: str) -> str:
    if not source.startswith("http"):
        return _plain(source)
    host = re.sub(r"^https?://(www\.)?", "", source)
    return f"[{host[:60]}{'…' if len(host) > 60 else ''}]({source})"


def _by_function(stated: list[Property]) -> dict[tuple[str, str], list[Property]]:
    groups: dict[tuple[str, str], list[Property]] = {}
    for prop in stated:
        groups.setdefault((prop.function.__module__, prop.function.__name__), []).append(prop)
    return groups


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.split("\n"))
