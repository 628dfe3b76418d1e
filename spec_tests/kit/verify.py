"""Judge somebody's answers to the vectors, with the bounds that stand beside them.

The answers are a folder with `answers.json` and safetensors files, whose tensors have the names that the manifest gives
to results and gradients. What is there is judged, what is lacking is reported; nothing in either folder is believed
before it has been checked.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reference import SPEC_VERSION
from spec_tests.kit.report import plain
from spec_tests.kit.runner import CannotRun
from spec_tests.kit.tensor_files import DTYPES, BadFile, parse_tensors, read_file, read_json, read_tensors
from spec_tests.kit.vectors import DIGEST, FORMAT, MANIFEST, PRECISIONS

ANSWERS = "answers.json"
ANSWERS_FORMAT = "transformer-spec answers 1"
ANSWERS_FIELDS = {"format", "spec_version", "dtype", "refused", "unsupported"}
STYLES = {
    "passed": "green", "failed": "bold red", "unjudged": "yellow", "unsupported": "yellow", "not answered": "dim",
}  # fmt: skip
VERDICTS = tuple(STYLES)
"""`unjudged` is an answer whose bounds in its dtype are all so wide that they say nothing."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on one part of a case: its result, its gradients, or the refusal of bad input."""

    case: str
    component: str
    part: str  # result, gradients or refusal
    verdict: str
    about: str = ""
    what: str = ""


@dataclass(frozen=True, kw_only=True)
class Verification:
    """All verdicts on one folder of answers; `unjudged_arrays` counts those without a bound in this dtype."""

    dtype: str
    verdicts: tuple[Verdict, ...]
    unjudged_arrays: int

    @property
    def exit_code(self) -> int:
        """0: something was answered and all of it is right; 1: something is wrong; 2: nothing was answered."""
        found = {verdict.verdict for verdict in self.verdicts}
        return 1 if "failed" in found else 0 if "passed" in found else 2

    def to_json(self) -> dict[str, Any]:
        """Give the verdicts as JSON data, in the form of `verdicts` in vectors.schema.json."""
        return {
            "spec_version": SPEC_VERSION,
            "dtype": self.dtype,
            "passed": self.exit_code == 0,
            "counts": {verdict: sum(v.verdict == verdict for v in self.verdicts) for verdict in VERDICTS},
            "unjudged_arrays": self.unjudged_arrays,
            "verdicts": [
                {name: value for name, value in vars(verdict).items() if value != ""} for verdict in self.verdicts
            ],
        }


def verify(folder: Path, outputs: Path) -> Verification:
    """Judge the answers in `outputs` to the vectors in `folder`. Raises CannotRun where either cannot be believed."""
    try:
        manifest, expected = _read_vectors(folder)
        answers, given = _read_answers(outputs, manifest)
        verdicts = [verdict for case in manifest["cases"] for verdict in _verdicts(case, answers, given, expected)]
    except BadFile as problem:
        raise CannotRun(str(problem)) from problem
    except OSError as problem:
        raise CannotRun(f"{problem.filename}: {problem.strerror}") from problem
    except (KeyError, TypeError, AttributeError, ValueError) as problem:
        raise CannotRun(f"{folder / MANIFEST}: it is not in the form of vectors.schema.json: {problem!r}") from problem
    arrays = (array for case in manifest["cases"] for array in _results(case))
    unjudged = sum(array["tensor"] in given and answers["dtype"] not in array["within"] for array in arrays)
    return Verification(dtype=answers["dtype"], verdicts=tuple(verdicts), unjudged_arrays=unjudged)


# ----------------------------------------------------------------------------------------------- the vectors


def _read_vectors(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Give the manifest and every expected array; files are held against digests, arrays against entries."""
    if not folder.is_dir():
        raise BadFile(f"{folder}: no such folder; `transformer-spec vectors {folder}` writes one")
    content = read_file(folder / MANIFEST)
    if read_file(folder / DIGEST).decode(errors="replace").split()[:1] != [hashlib.sha256(content).hexdigest()]:
        raise BadFile(f"{MANIFEST}: it is not the file that was written: {DIGEST} has another digest")
    manifest = read_json(content, MANIFEST)
    _check_version(MANIFEST, FORMAT, manifest)
    expected: dict[str, np.ndarray] = {}
    for name, stated in manifest["files"].items():
        if not name or Path(name).name != name or "\\" in name or name in (".", ".."):
            raise BadFile(f"{MANIFEST}: {name!r} leaves the folder; its files have names without a path")
        content = read_file(folder / name)
        if len(content) != stated["bytes"] or hashlib.sha256(content).hexdigest() != stated["sha256"]:
            raise BadFile(f"{name}: it is not the file that was written: its digest is another")
        metadata, tensors = parse_tensors(content, name)
        _check_version(name, FORMAT, metadata)
        if ".expected." in name:
            expected |= tensors
    names = [case["name"] for case in manifest["cases"]]
    arrays = {array["tensor"]: array for case in manifest["cases"] for array in _results(case)}
    if len(set(names)) != len(names) or set(arrays) != set(expected):
        raise BadFile(f"{MANIFEST}: its cases do not have the names and tensors of its files")
    for name, array in expected.items():
        if array.dtype != DTYPES[arrays[name]["dtype"]] or list(array.shape) != arrays[name]["shape"]:
            raise BadFile(f"{MANIFEST}: {name} is {array.dtype} of shape {list(array.shape)}, unlike its entry")
    return manifest, expected


def _check_version(name: str, wanted: str, metadata: Mapping[str, Any]) -> None:
    if metadata.get("format") != wanted:
        raise BadFile(f"{name}: its format is {metadata.get('format')!r}, and should be {wanted!r}")
    if metadata.get("spec_version") != SPEC_VERSION:
        raise BadFile(
            f"{name}: it is of specification {metadata.get('spec_version')}, and this is {SPEC_VERSION}; "
            f"write the vectors, and the answers, anew"
        )


def _results(case: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield from case.get("results", ())
    yield from case.get("gradients", ())


# ----------------------------------------------------------------------------------------------- the answers


def _read_answers(outputs: Path, manifest: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Give what `answers.json` says, and every tensor beside it, each of which must be one that is asked for."""
    answers = read_json(read_file(outputs / ANSWERS), ANSWERS)
    if not isinstance(answers, dict) or not set(answers) <= ANSWERS_FIELDS:
        raise BadFile(f"{ANSWERS}: it must be an object with no other fields than {', '.join(sorted(ANSWERS_FIELDS))}")
    _check_version(ANSWERS, ANSWERS_FORMAT, answers)
    if answers.get("dtype") not in PRECISIONS:
        raise BadFile(f"{ANSWERS}: dtype must be float64 or float32, got {answers.get('dtype')!r}")
    refused, unsupported = answers.setdefault("refused", []), answers.setdefault("unsupported", {})
    if not (isinstance(refused, list) and all(isinstance(n, str) for n in refused) and isinstance(unsupported, dict)):
        raise BadFile(f"{ANSWERS}: refused is a list of cases, and unsupported gives a reason for each of its cases")
    known = {case["name"] for case in manifest["cases"]}
    if strange := [name for name in (*refused, *unsupported) if name not in known]:
        raise BadFile(f"{ANSWERS}: {strange[0]!r} is not a case of the manifest")

    asked = {array["tensor"] for case in manifest["cases"] for array in _results(case)}
    bad_input = {case["name"] for case in manifest["cases"] if case.get("refused")}
    given: dict[str, np.ndarray] = {}
    for path in sorted(outputs.glob("*.safetensors")):
        metadata, tensors = read_tensors(path)
        _check_version(path.name, ANSWERS_FORMAT, metadata)
        for name, array in tensors.items():
            if name not in asked and name.split("/")[0] not in bad_input:
                raise BadFile(f"{path.name}: {name!r} is not a tensor that is asked for")
            if name in given:
                raise BadFile(f"{path.name}: {name!r} is answered twice")
            given[name] = array
    return answers, given


def _verdicts(
    case: Mapping[str, Any],
    answers: Mapping[str, Any],
    given: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
) -> Iterator[Verdict]:
    """Judge one case: its result and its gradients, or whether bad input was refused."""
    name, refused = case["name"], case["name"] in answers["refused"]
    about = {"case": name, "component": case["component"], "about": case["about"]}
    answered = [tensor for tensor in given if tensor.split("/")[0] == name]
    if sum((refused, name in answers["unsupported"], bool(answered))) > 1:
        raise BadFile(f"{ANSWERS}: {name} is answered, refused and unsupported at once, or two of these")
    bad_input = case.get("refused", False)
    parts = ("refusal",) if bad_input else tuple(part for part in ("results", "gradients") if part in case)
    for part in parts:
        verdict, what = "not answered", ""
        if name in answers["unsupported"]:
            verdict, what = "unsupported", str(answers["unsupported"][name])
        elif bad_input and (refused or answered):
            verdict, what = ("passed", "") if refused else ("failed", "bad input was accepted")
        elif refused:
            verdict, what = "failed", "good input was refused"
        elif any(array["tensor"] in given for array in case.get(part, ())):
            wrong = (_what_is_wrong(array, given, expected, answers["dtype"]) for array in case[part])
            what = next(filter(None, wrong), "")
            judged = any(answers["dtype"] in array["within"] for array in case[part])
            verdict = "failed" if what else "passed" if judged else "unjudged"
        yield Verdict(part=part.removesuffix("s") if part == "results" else part, verdict=verdict, what=what, **about)


def _what_is_wrong(
    array: Mapping[str, Any], given: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], dtype: str
) -> str:
    """Say what is wrong with one array of an answer, and where first; nothing if it is right."""
    name = array["tensor"]
    short = name.split("/", 1)[1]
    if name not in given:
        return f"{short} is lacking"
    got, should = given[name], expected[name]
    kinds = {"f": (PRECISIONS[dtype],), "i": (DTYPES["I64"], DTYPES["I32"]), "b": (DTYPES["BOOL"],)}[should.dtype.kind]
    if got.dtype not in kinds:
        return f"{short} is {got.dtype}, and should be {kinds[0]}"
    if got.shape != should.shape:
        return f"{short} has shape {list(got.shape)}, and should have {list(should.shape)}"
    within = array["within"].get(dtype, np.inf)
    got, should = got.astype(np.float64), should.astype(np.float64)
    same = (got == should) | (np.isnan(got) & np.isnan(should))
    with np.errstate(invalid="ignore", over="ignore"):
        wrong = ~same & ~(np.abs(got - should) <= within)
    if dtype not in array["within"]:  # its numbers are not judged, but it has some where it should
        wrong = np.isfinite(got) != np.isfinite(should)
    if not wrong.any():
        return ""
    first = tuple(int(place) for place in np.argwhere(wrong)[0])
    where = f" at {list(first)}" if first else ""
    return (
        f"{short} is {got[first]:.9g}{where} and should be {should[first]:.9g} "
        f"({int(wrong.sum())} of {wrong.size} wrong; {within:.2g} allowed)"
    )


# ----------------------------------------------------------------------------------------------- as text


def write_json(verification: Verification, file: Path) -> None:
    """Write the verdicts."""
    file.write_text(json.dumps(verification.to_json(), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def show(verification: Verification, console: Console) -> None:
    """Print a table of the components, and every failure with the first element that differs."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("component", no_wrap=True)
    for verdict in VERDICTS:
        table.add_column(verdict, justify="right")
    for component in dict.fromkeys(verdict.component for verdict in verification.verdicts):
        found = [verdict.verdict for verdict in verification.verdicts if verdict.component == component]
        counts = {verdict: found.count(verdict) for verdict in VERDICTS}
        cells = [Text(str(n) if n else "·", STYLES[verdict] if n else "dim") for verdict, n in counts.items()]
        table.add_row(Text(component), *cells)
    console.print(Text(f"vectors   spec {SPEC_VERSION} · {verification.dtype}", "bold"))
    console.print(table)
    for verdict in verification.verdicts:
        if verdict.verdict == "failed":
            console.print(Text.assemble(("\nFAILED", "bold red"), f" {verdict.case} ({verdict.part})"), soft_wrap=True)
            console.print(Text(f"  {verdict.about}", "italic"), soft_wrap=True)
            console.print(Text(f"  {plain(verdict.what)}"), soft_wrap=True)
    if verification.unjudged_arrays:
        said = (
            f"{verification.unjudged_arrays} arrays were not judged: in {verification.dtype} their bounds say nothing"
        )
        console.print(Text(f"\n{said}", "dim"), soft_wrap=True)
    counts = {verdict: sum(v.verdict == verdict for v in verification.verdicts) for verdict in VERDICTS}
    style = "bold green" if verification.exit_code == 0 else "bold red"
    console.print(Text("\n" + ", ".join(f"{n} {verdict}" for verdict, n in counts.items() if n), style))
