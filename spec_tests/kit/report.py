"""What came out of a check: as data, as JSON, as text."""

import json
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reference import SPEC_VERSION

REPORT_VERSION = 3
"""The version of the JSON report's form; see report.schema.json."""

VERDICTS = ("passed", "failed", "unsupported", "xfailed", "xpassed", "error")

SHOWN = 2000
"""So many characters are shown of a text that the subject has made."""

WHOLE = 2
"""So many failures of a component that has a diagnosis are shown whole, unless all are asked for."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The verdict on one property, and for a failure all there is to know about it."""

    id: str
    component: str
    sentence: str
    verdict: str
    gradient: bool = False  # whether the property is about the component's gradient
    what: str = ""
    kind: str | None = None  # mismatch, raised, flaky, hang, crash
    got: Any = None
    should: Any = None
    calls: tuple[dict[str, Any], ...] = ()  # in the form of `wire.encode_call`
    reproduction: str | None = None
    output: str = ""
    reason: str | None = None  # of the expected failure
    link: str | None = None
    seconds: float = 0.0

    @property
    def bad(self) -> bool:
        """Say whether this keeps the whole from passing."""
        return self.verdict in ("failed", "xpassed", "error")


@dataclass(frozen=True, kw_only=True)
class Report:
    """All verdicts on one subject."""

    subject: str
    dtype: str
    seed: int
    max_examples: int
    results: tuple[Result, ...]
    not_offered: tuple[str, ...] = ()
    conventions: dict[str, dict[str, Any]] = field(default_factory=dict)  # that the subject declares
    precision: tuple[dict[str, Any], ...] = ()  # of components, in the form of the schema
    diagnoses: tuple[dict[str, Any], ...] = ()  # of components that failed, in the form of the schema
    spec_version: str = SPEC_VERSION
    width: int | None = field(default=None, compare=False)

    @property
    def passed(self) -> bool:
        """Say whether something ran, and all of it passed or was expected to fail."""
        return self.exit_code == 0

    @property
    def failures(self) -> tuple[Result, ...]:
        """The failed properties, those that passed unexpectedly, and those that could not be judged."""
        return tuple(result for result in self.results if result.bad)

    @property
    def exit_code(self) -> int:
        """0: all passed; 1: something failed; 2: nothing ran, or nothing failed but something could not be judged."""
        verdicts = {result.verdict for result in self.results}
        if verdicts & {"failed", "xpassed"}:
            return 1
        return 0 if verdicts & {"passed", "xfailed"} and "error" not in verdicts else 2

    def to_json(self) -> dict[str, Any]:
        """Give the report as JSON data, in the form of report.schema.json."""
        return {
            "report_version": REPORT_VERSION,
            "spec_version": self.spec_version,
            "subject": self.subject,
            "dtype": self.dtype,
            "seed": self.seed,
            "max_examples": self.max_examples,
            "passed": self.passed,
            "counts": {verdict: sum(r.verdict == verdict for r in self.results) for verdict in VERDICTS},
            "not_offered": list(self.not_offered),
            "conventions": self.conventions,
            "results": [_result_json(result) for result in self.results],
            "precision": list(self.precision),
            "diagnoses": list(self.diagnoses),
        }

    def __str__(self) -> str:
        text = StringIO()
        show(self, Console(file=text, width=self.width or 100, color_system=None))
        return text.getvalue()


def _result_json(result: Result) -> dict[str, Any]:
    data: dict[str, Any] = {
        "id": result.id,
        "component": result.component,
        "sentence": result.sentence,
        "verdict": result.verdict,
        "gradient": result.gradient,
        "seconds": round(result.seconds, 4),
    }
    for name in ("what", "kind", "got", "should", "reproduction", "output", "reason", "link"):
        if getattr(result, name) not in (None, ""):
            data[name] = getattr(result, name)
    if result.calls:
        data["calls"] = list(result.calls)
    return data


def write_json(report: Report, file: Path) -> None:
    """Write the report."""
    file.write_text(json.dumps(report.to_json(), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def plain(text: Any, limit: int = SHOWN) -> str:
    r"""Make a text safe to print: what is no visible character is spelt (`\x1b`), and the end is cut off."""
    text = str(text)
    cut = text if len(text) <= limit else text[:limit]
    shown = "".join(c if c == "\n" or _visible(c) else _spelt(c) for c in cut.replace("\t", "    "))
    return shown if len(text) <= limit else f"{shown}… ({len(text) - limit} more characters)"


def _visible(character: str) -> bool:
    # Cc, Cf: controls, terminal codes and what turns the writing direction; Cs, Co, Cn: not characters; Zl, Zp: lines
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def _spelt(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


# ----------------------------------------------------------------------------------------------- as text


def show(report: Report, console: Console, *, all_failures: bool = False) -> None:
    """Print the table, the expected failures with their reasons, the diagnoses and the failures.

    Of a component that has a diagnosis the first failures are shown whole and the rest in a line each, unless
    `all_failures` are asked for.
    """
    from spec_tests.kit.precision import summary
    from spec_tests.subjects.conventions import described

    head = f"{plain(report.subject, 200)}   spec {report.spec_version} · {report.dtype} · seed {report.seed}"
    console.print(Text(f"{head} · {report.max_examples} examples a property", "bold"), soft_wrap=True)
    if report.conventions:
        console.print(Text(f"declares: {described(report.conventions)}", "dim"), soft_wrap=True)
    console.print(_table(report.results))
    if report.not_offered:
        console.print(Text(f"not offered: {', '.join(report.not_offered)}", "dim"))
    for component in dict.fromkeys(result.component for result in report.results):
        reasons = {r.what for r in report.results if r.verdict == "unsupported" and r.component == component}
        if reasons:
            shown_reasons = "; ".join(plain(reason, 120) for reason in sorted(reasons)[:3])
            more = "; …" if len(reasons) > 3 else ""
            console.print(Text(f"unsupported: {component}: {shown_reasons}{more}", "dim"), soft_wrap=True)
    for result in report.results:
        if result.verdict == "xfailed":
            link = f" ({result.link})" if result.link else ""
            console.print(
                Text(f"expected to fail: {result.id}: {plain(result.reason, 300)}{link}", "dim"), soft_wrap=True
            )
    for text in summary(report.precision):
        console.print(Text(f"precision: {text}" if text == text.lstrip() else text, "dim"), soft_wrap=True)
    diagnoses = {diagnosis["component"]: diagnosis for diagnosis in report.diagnoses}
    for component in dict.fromkeys(result.component for result in report.failures):
        failures = [result for result in report.failures if result.component == component]
        whole = failures
        if component in diagnoses:
            _show_diagnosis(diagnoses[component], console)
            if diagnoses[component]["findings"] and not all_failures:
                whole = [r for r in failures if r.verdict != "failed" or r in failures[:WHOLE]]
        for result in whole:
            _show_failure(result, console)
        if folded := [result for result in failures if result not in whole]:
            console.print()
        for result in folded:
            line = " ".join(plain(result.what, 160).split())
            console.print(Text.assemble(("FAILED", "bold red"), f" {result.id}: {line}"), soft_wrap=True)
        if folded:
            hint = f"({len(folded)} in a line each, which the diagnosis may explain: --all-failures shows them whole)"
            console.print(Text(hint, "dim"), soft_wrap=True)
    console.print(_last_line(report))


COLUMNS = {"passed": "green", "failed": "bold red", "unsupported": "yellow", "xfailed": "yellow"}
"""The columns of the table, each with its style; what passed against expectation or broke stands with the failed."""


def _table(results: Iterable[Result]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("component", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right")
    table.add_column("gradients")
    components: dict[str, tuple[list[str], list[str]]] = {}
    for result in results:
        values, gradients = components.setdefault(result.component, ([], []))
        (gradients if result.gradient else values).append("failed" if result.bad else result.verdict)
    for component, (values, gradients) in components.items():
        counts = {column: values.count(column) for column in COLUMNS}
        cells = [Text(str(n) if n else "·", COLUMNS[column] if n else "dim") for column, n in counts.items()]
        table.add_row(Text(component), *cells, _gradients_cell(gradients))
    return table


def _gradients_cell(verdicts: list[str]) -> Text:
    """Say in short how the properties about gradients went: `2 failed` of however many, or else `12 passed`."""
    for column in ("failed", "passed", "xfailed", "unsupported"):
        if n := verdicts.count(column):
            return Text(f"{n} {column}", COLUMNS[column])
    return Text("·", "dim")


def _show_diagnosis(diagnosis: dict[str, Any], console: Console) -> None:
    console.print()
    console.print(Text.assemble(("DIAGNOSIS", "bold magenta"), f" {diagnosis['component']}"), soft_wrap=True)
    texts = [finding["text"] for finding in diagnosis["findings"]]
    if "first_divergence" in diagnosis:
        texts.append(diagnosis["first_divergence"]["text"])
    if diagnosis.get("problem"):
        texts.append(f"There is none: {diagnosis['problem']}.")
    for text in texts:
        for line in plain(text, 3 * SHOWN).split("\n"):
            console.print(Text(f"  {line}"), soft_wrap=True)


def _show_failure(result: Result, console: Console) -> None:
    heading = {"failed": "FAILED", "xpassed": "PASSED AGAINST EXPECTATION", "error": "COULD NOT BE JUDGED"}
    console.print()
    console.print(Text.assemble((heading[result.verdict], "bold red"), f" {result.id}"), soft_wrap=True)

    def line(text: str, style: str = "") -> None:
        for part in text.split("\n"):
            console.print(Text(f"  {part}", style), soft_wrap=True)

    line(result.sentence, "italic")
    line(plain(result.what))
    for name, value in (("got", result.got), ("should", result.should)):
        if value is not None:
            line(f"{name:<6} {plain(shown(value)).replace(chr(10), chr(10) + ' ' * 7)}")
    if result.reason and result.verdict == "xpassed":
        line(f"it was expected to fail: {plain(result.reason, 300)}; take it out of the expected failures")
    if result.output.strip():
        line("the subject printed")
        line("\n".join(f"  {part}" for part in _last_lines(plain(result.output))), "dim")
    if result.reproduction:
        line("reproduce with")
        line("\n".join(f"  {_cut(part)}" for part in result.reproduction.rstrip("\n").split("\n")), "cyan")


def _last_lines(text: str, count: int = 12) -> list[str]:
    lines = text.rstrip("\n").split("\n")
    return lines if len(lines) <= count else [f"… ({len(lines) - count} lines before)", *lines[-count:]]


def _cut(line: str, limit: int = 400) -> str:
    """Cut a line of the reproduction that nobody would read on a terminal; the JSON report has it whole."""
    return line if len(line) <= limit else f"{line[:limit]} … (whole in the JSON report)"


def shown(value: Any) -> str:
    """Show a value in its JSON form (see `wire`) the way a person reads it."""
    from spec_tests.kit.wire import decode

    value = decode(value)
    return np.array2string(value, threshold=40, precision=8) if isinstance(value, np.ndarray) else str(value)


def _last_line(report: Report) -> Text:
    counts = {verdict: sum(r.verdict == verdict for r in report.results) for verdict in VERDICTS}
    parts = [f"{n} {verdict}" for verdict, n in counts.items() if n] or ["nothing ran"]
    return Text(f"\n{', '.join(parts)}", "bold green" if report.passed else "bold red")
