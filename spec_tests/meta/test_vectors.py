"""The vectors: whole, alike each time, agreed upon; and what is not as it should be is refused or fails."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reference.torch
from reference.components import COMPONENTS
from spec_tests.judge import SubjectRaised
from spec_tests.kit import vector_cases, vectors
from spec_tests.kit.cli import app
from spec_tests.kit.runner import CannotRun
from spec_tests.kit.tensor_files import read_tensors, write_tensors
from spec_tests.kit.vector_cases import all_cases, as_call
from spec_tests.kit.verify import ANSWERS, ANSWERS_FORMAT, Verification, verify
from spec_tests.kit.wire import decode
from spec_tests.meta.schema import problems
from spec_tests.strategies import ALL_CASES
from spec_tests.subjects.contract import VJP, Call, array_annotations, signature
from spec_tests.subjects.loading import load
from spec_tests.subjects.subject import Subject

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "spec_tests" / "kit" / "vectors.schema.json").read_text())
PROGRAM = ROOT / "examples" / "vectors" / "answer.py"
METADATA = {"format": ANSWERS_FORMAT, "spec_version": reference.SPEC_VERSION}

Tensors = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """Write the vectors once, without asking the backends: that is what the round trips do."""
    folder = tmp_path_factory.mktemp("vectors") / "written"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "_backends", list)
        vectors.write_vectors(folder)
    return folder


@pytest.fixture(scope="module")
def manifest(written) -> dict[str, Any]:
    """Read the manifest."""
    return json.loads((written / "manifest.json").read_text())


def some(patch: pytest.MonkeyPatch, *components: str) -> None:
    """Let the vectors be those of some components."""
    cases = [case for case in all_cases() if case.call.component in components]
    patch.setattr(vectors, "all_cases", lambda: iter(cases))
    patch.setattr(vectors, "COMPONENTS", {name: COMPONENTS[name] for name in components})


@pytest.fixture(scope="module")
def few(tmp_path_factory) -> Path:
    """Write the vectors of three components: enough for how they are judged."""
    folder = tmp_path_factory.mktemp("vectors") / "few"
    with pytest.MonkeyPatch.context() as patch:
        some(patch, "relu", "gelu", "adamw_step")
        patch.setattr(vectors, "_backends", list)
        vectors.write_vectors(folder)
    return folder


@pytest.fixture
def folder(few, tmp_path) -> Path:
    """Copy the vectors, to be spoilt."""
    return Path(shutil.copytree(few, tmp_path / "spoilt"))


@pytest.fixture
def outputs(few, tmp_path) -> Path:
    """Write right answers, and one refusal, to be spoilt."""
    _, expected = read_tensors(few / "adamw_step.expected.safetensors")
    return answered(tmp_path / "outputs", expected, refused=["adamw_step.a_step_of_0"])


def answered(folder: Path, tensors: Tensors, *, dtype: str = "float64", **more: Any) -> Path:
    """Write a folder of answers."""
    folder.mkdir(exist_ok=True)
    write_tensors(folder / "answers.safetensors", tensors, METADATA)
    (folder / ANSWERS).write_text(json.dumps({**METADATA, "dtype": dtype, **more}))
    return folder


def verdicts_of(verification: Verification) -> dict[tuple[str, str], str]:
    """Give the verdicts on what was answered."""
    return {(v.case, v.part): v.verdict for v in verification.verdicts if v.verdict != "not answered"}


# ----------------------------------------------------------------------------------------------- what is written


def test_every_component_has_cases(manifest) -> None:
    """Every named case stands there in three sizes, every component has edges or bad input, and no name comes twice."""
    names = [case["name"] for case in manifest["cases"]]
    assert len(set(names)) == len(names)
    assert {f"{case}.{size}" for case in ALL_CASES for size in range(3)} <= set(names)
    for component, about in COMPONENTS.items():
        cases = [case for case in manifest["cases"] if case["component"] == component]
        assert len([case for case in cases if "refused" not in case]) >= 4, component
        # a config that is bad cannot be made, and a count takes nothing else
        assert any("refused" in case for case in cases) or component == "parameter_count", component
        assert any("gradients" in case for case in cases) == about.differentiable, component


def test_the_manifest_fits_its_schema(manifest) -> None:
    """It is in the form that vectors.schema.json promises, and that form is not any form."""
    assert problems(manifest, SCHEMA) == []
    assert '"$": "config"' in json.dumps(manifest)
    for spoilt in ({"spec_version": 1}, {"cases": [{"name": "x"}]}):
        assert problems({**manifest, **spoilt}, SCHEMA), "the check of the schema must be able to fail"


def test_it_is_small(written) -> None:
    """The vectors are some megabytes, so that a repository can hold them."""
    assert sum(file.stat().st_size for file in written.iterdir()) < 6 * 2**20


def test_another_process_writes_the_same_bytes(written, tmp_path) -> None:
    """A second run, with other hashes, an other order of threads and no backend, gives the same files bit for bit."""
    code = (
        "import sys, pathlib\nfrom spec_tests.kit import vectors\nvectors._backends = list\n"
        "vectors.write_vectors(pathlib.Path(sys.argv[1]))\nassert 'torch' not in sys.modules"
    )
    again = tmp_path / "again"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "77"}
    subprocess.run([sys.executable, "-c", code, str(again)], env=environment, check=True, timeout=120)
    assert {file.name for file in again.iterdir()} == {file.name for file in written.iterdir()}
    assert [file.name for file in written.iterdir() if file.read_bytes() != (again / file.name).read_bytes()] == []


def test_float32_holds_every_input(written) -> None:
    """What is given is exact in float32, but for the gradients that are there to be out of its range."""
    rounded = set()
    for component in COMPONENTS:
        _, tensors = read_tensors(written / f"{component}.inputs.safetensors")
        for name, array in tensors.items():
            with np.errstate(over="ignore"):
                if not np.array_equal(array, array.astype(np.float32), equal_nan=array.dtype.kind == "f"):
                    rounded.add(name.split("/")[0])
    assert rounded == {"clip_grad_norm.huge_gradients", "clip_grad_norm.tiny_gradients"}


def test_every_axis_has_another_length() -> None:
    """In a drawn call no two axes are alike, but for those that one follows from the other."""
    followed = {"heads_d_k", "heads_d_v"}
    for case in all_cases():
        if case.refused or case.name.count(".") < 2 or case.call.component == "multi_head_attention":
            continue
        lengths: dict[str, Any] = {}
        bound = signature(case.call.component).bind(*case.call.args, **case.call.options)
        for name, value in bound.arguments.items():
            for annotation in array_annotations(signature(case.call.component).parameters[name].annotation):
                axes = annotation.dim_str.split() if isinstance(value, np.ndarray) else []
                lengths |= dict(zip(reversed(axes), reversed(np.shape(value)), strict=False))
        found = [length for axis, length in lengths.items() if axis[0] != "*" and axis not in followed | {"max_len"}]
        assert len(set(found)) == len(found), (case.name, lengths)


# ----------------------------------------------------------------------------------------------- only what is agreed


@pytest.fixture
def only_relu(monkeypatch) -> None:
    """Let the vectors be those of relu."""
    some(monkeypatch, "relu")


def test_what_is_agreed_upon_is_written(only_relu, tmp_path) -> None:
    """With both backends asked, the vectors of relu are written."""
    vectors.write_vectors(tmp_path / "vectors")
    assert (tmp_path / "vectors" / "manifest.json").exists()


def written_to(x: Any) -> Any:
    """Give relu(x), and leave x changed."""
    y = x.relu()
    x.mul_(2)
    return y


@pytest.mark.parametrize(
    ("relu", "said"),
    [
        (lambda x: x.abs(), "relu.plain.0: .* reference.torch in float64: result is off"),
        (lambda x: (x * 1.0001 if x.dtype.itemsize == 4 else x).relu(), "in float32: result"),
        (lambda x: x.relu() + 0.5 * (x - x.detach()), "in float64: gradient.x is off"),
        (written_to, "the argument at"),
    ],
    ids=["value", "float32", "gradient", "argument"],
)
def test_a_disagreement_is_named_and_nothing_is_written(only_relu, monkeypatch, tmp_path, relu, said) -> None:
    """Where the backends differ, in the result, in float32, in the gradient or in manners, the command says which."""
    monkeypatch.setattr(reference.torch, "relu", lambda x: relu(x) if x.is_floating_point() else [][x])
    with pytest.raises(CannotRun, match=said):
        vectors.write_vectors(tmp_path / "vectors")
    assert not (tmp_path / "vectors").exists()


def test_bad_input_that_one_accepts_is_named(only_relu, monkeypatch, tmp_path) -> None:
    """Bad input is written only if both backends refuse it."""
    monkeypatch.setattr(reference.torch, "relu", lambda x: x.relu())
    with pytest.raises(CannotRun, match=r"relu.x_of_another_kind: .* reference.torch accepted bad input"):
        vectors.write_vectors(tmp_path / "vectors")


def test_some_cases_are_agreed_upon() -> None:
    """The command asks both backends about every case; here about every twentieth, others from run to run."""
    backends = vectors._backends()
    for case in list(all_cases())[os.getpid() % 20 :: 20]:
        vectors._entry(case, backends, {}, {})


def test_an_option_that_a_new_case_draws_needs_values(monkeypatch) -> None:
    """A case whose option Hypothesis draws has values here, or the command says where to add them."""
    monkeypatch.delitem(vector_cases.VALUES, "layer_norm.eps")
    with pytest.raises(KeyError, match=r"the option eps of layer_norm.eps"):
        list(all_cases())


def test_a_folder_with_something_in_it_is_left_alone(tmp_path) -> None:
    """The command writes into no folder that holds anything."""
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(CannotRun, match="not an empty folder"):
        vectors.write_vectors(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


# ----------------------------------------------------------------------------------------------- round trips


def argument(value: Any, tensors: Tensors) -> Any:
    """Read an argument of a case from the manifest."""
    if isinstance(value, list):
        return [argument(part, tensors) for part in value]
    if isinstance(value, dict) and value["$"] == "tensor":
        return tensors[value["name"]]
    if isinstance(value, dict) and value["$"] == "dict":
        return {name: argument(part, tensors) for name, part in value["items"].items()}
    return decode(value)


def answers_of(subject: Subject, written: Path, manifest: dict[str, Any]) -> tuple[Tensors, list[str]]:
    """Let a subject answer every case that is read from the files."""
    given, refused = {}, []
    inputs = {name: read_tensors(written / f"{name}.inputs.safetensors")[1] for name in COMPONENTS}
    for case in manifest["cases"]:
        component, tensors = case["component"], inputs[case["component"]]
        if not any(subject.dtype.name in array["within"] for array in case.get("results", [{"within": "float64"}])):
            continue  # too large for float32
        call = as_call(component, {n: argument(v, tensors) for n, v in case["arguments"].items()})
        if "refused" in case:
            with subject.expecting_an_error(), pytest.raises(SubjectRaised):
                subject.call(component, *call.args, **call.options)
            refused.append(case["name"])
            continue
        calls = [call]
        if "cotangent" in case:
            calls.append(Call(component + VJP, (argument(case["cotangent"], tensors), *call.args), call.options))
        for one in calls:
            result = subject.call(one.component, *one.args, **one.options)
            arrays = vectors.named_arrays(one.component, result)
            given |= {f"{case['name']}/{path}": array for path, array in arrays.items()}
    return given, refused


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_what_the_twin_answers_passes(written, manifest, tmp_path, dtype) -> None:
    """Read from the files and answered by PyTorch, every case is right, in float64 and in float32."""
    subject = load("reference.torch").subject
    subject.dtype = np.dtype(dtype)
    tensors, refused = answers_of(subject, written, manifest)
    # rates and perplexities are float64 whatever the inputs
    tensors = {name: array.astype(dtype) if array.dtype.kind == "f" else array for name, array in tensors.items()}
    verification = verify(written, answered(tmp_path / "outputs", tensors, dtype=dtype, refused=refused))
    assert [v for v in verification.verdicts if v.verdict in ("failed", "unsupported")] == []
    assert verification.exit_code == 0
    results = [v.verdict for v in verification.verdicts if v.part == "result"]
    assert results.count("passed") > 0.95 * len(results), "a result is hardly ever unjudged"
    if dtype == "float64":
        assert {v.verdict for v in verification.verdicts} == {"passed"}


def ask(*options: str) -> str:
    """Give code that runs the program where nothing of this project can be imported."""
    return (
        "import runpy, sys\n"
        "for package in ('reference', 'spec_tests', 'safetensors', 'torch'):\n    sys.modules[package] = None\n"
        f"sys.argv = ['answer.py', *sys.argv[1:], *{list(options)!r}]\n"
        f"runpy.run_path({str(PROGRAM)!r}, run_name='__main__')\n"
    )


def run_program(written: Path, outputs: Path, *options: str) -> Verification:
    """Let the program answer, and judge what it says."""
    command = [sys.executable, "-I", "-c", ask(*options), str(written), str(outputs)]
    subprocess.run(command, check=True, timeout=60, cwd=outputs.parent)
    return verify(written, outputs)


needs_the_program = pytest.mark.skipif(not PROGRAM.exists(), reason="the examples are in the repository only")


@needs_the_program
def test_a_program_that_imports_nothing_of_ours_passes(written, tmp_path) -> None:
    """Plain NumPy that reads the files by hand answers five components, gradients of two among them."""
    verification = run_program(written, tmp_path / "outputs")
    assert [v for v in verification.verdicts if v.verdict == "failed"] == []
    passed = {(v.component, v.part) for v in verification.verdicts if v.verdict == "passed"}
    five = ("softmax", "layer_norm", "gelu", "scaled_dot_product_attention", "cross_entropy")
    assert passed == {
        *((name, "result") for name in five),
        ("softmax", "gradients"),
        ("cross_entropy", "gradients"),
        ("layer_norm", "refusal"),
    }


@needs_the_program
def test_a_mistake_in_the_program_is_found(written, tmp_path) -> None:
    """A layer norm that divides by n - 1 fails in every size of every case of it, and nothing else fails."""
    verification = run_program(written, tmp_path / "outputs", "--mistake")
    failed = {v.case for v in verification.verdicts if v.verdict == "failed"}
    assert {f"layer_norm.{case}.{size}" for case in ("plain", "affine", "eps") for size in (0, 2)} <= failed
    assert {name.split(".")[0] for name in failed} == {"layer_norm"}
    assert verification.exit_code == 1


def test_the_command_prints_the_first_element_that_differs(few, outputs, tmp_path, capsys) -> None:
    """`verify` shows a table and each failure, writes the verdicts in their form, and ends with 1."""
    _, tensors = read_tensors(outputs / "answers.safetensors")
    name, place = "adamw_step.plain.0/result.1", (1, 2)
    tensors[name] = tensors[name].copy()
    tensors[name][place] += 1
    off = tensors[name][place]
    answered(outputs, tensors)
    with pytest.raises(SystemExit) as end:
        app(["verify", str(few), str(outputs), "--json", str(tmp_path / "verdicts.json")])
    said = capsys.readouterr().out
    assert end.value.code == 1
    assert "FAILED adamw_step.plain.0 (result)" in said
    assert f"result.1 is {off:.9g} at [1, 2] and should be {off - 1:.9g} (1 of " in said
    data = json.loads((tmp_path / "verdicts.json").read_text())
    assert problems(data, {**SCHEMA["$defs"]["verdicts"], "$defs": SCHEMA["$defs"]}) == []
    assert data["counts"]["failed"] == 1


def test_no_answer_is_no_pass(few, tmp_path) -> None:
    """Where nothing was answered, or all declared unsupported, the exit code is 2."""
    assert verify(few, answered(tmp_path / "none", {})).exit_code == 2
    told = {"relu.plain.0": "not yet"}
    verification = verify(few, answered(tmp_path / "unsupported", {}, unsupported=told))
    assert verification.exit_code == 2
    assert verdicts_of(verification) == dict.fromkeys(
        [("relu.plain.0", "result"), ("relu.plain.0", "gradients")], "unsupported"
    )


# ----------------------------------------------------------------------------------------------- wrong answers

NAME = "adamw_step.plain.1/result.0"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a: a + 1e-6, "result.0 is"),
        (lambda a: a * np.nan, "result.0 is nan at [0, 0, 0]"),
        (lambda a: a / 0, "result.0 is"),
        (lambda a: a[0], "result.0 has shape"),
        (lambda a: a[None], "result.0 has shape"),
        (lambda a: a.astype(np.float32), "result.0 is float32, and should be float64"),
        (lambda a: a.astype(np.int64), "result.0 is int64, and should be float64"),
        (None, "result.0 is lacking"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_a_wrong_answer_fails(few, outputs, change, said) -> None:
    """Another number, NaN, infinity, another shape or dtype, or a part that is lacking: the case fails, no other."""
    _, tensors = read_tensors(outputs / "answers.safetensors")
    if change is None:
        del tensors[NAME]
    else:
        tensors[NAME] = change(tensors[NAME])
    verification = verify(few, answered(outputs, tensors))
    (failed,) = [v for v in verification.verdicts if v.verdict == "failed"]
    assert failed.case == "adamw_step.plain.1"
    assert failed.what.startswith(said)


def test_a_nan_that_is_due_must_be_there(few, tmp_path) -> None:
    """NaN in gives NaN out, in its place and no other."""
    _, tensors = read_tensors(few / "gelu.expected.safetensors")
    name = "gelu.nan/result"
    assert np.isnan(tensors[name]).any()
    assert verify(few, answered(tmp_path / "right", {name: tensors[name]})).exit_code == 0
    assert verify(few, answered(tmp_path / "wrong", {name: np.nan_to_num(tensors[name])})).exit_code == 1


def test_accepting_bad_input_and_refusing_good_fail(few, tmp_path) -> None:
    """Numbers for bad input, and no numbers for good, are wrong."""
    accepted = {"relu.x_of_another_kind/result": np.zeros(3)}
    verification = verify(few, answered(tmp_path / "outputs", accepted, refused=["gelu.tails", "relu.plain.0"]))
    assert {v.case: v.what for v in verification.verdicts if v.verdict == "failed"} == {
        "relu.x_of_another_kind": "bad input was accepted",
        "gelu.tails": "good input was refused",
        "relu.plain.0": "good input was refused",
    }


# ----------------------------------------------------------------------------------------------- what is not believed


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest, and its digest with it."""
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    content = json.dumps(manifest).encode()
    (folder / "manifest.json").write_bytes(content)
    (folder / "manifest.json.sha256").write_text(f"{hashlib.sha256(content).hexdigest()}  manifest.json\n")


def elsewhere(name: str) -> Callable[[Path], None]:
    """Let the manifest speak of a file outside, which is there and has the right digest."""

    def spoil(folder: Path) -> None:
        inside, outside = folder / "relu.inputs.safetensors", folder.parent / "outside.safetensors"
        shutil.copy(inside, outside)
        place = name.format(folder=folder.parent)
        rewrite(folder, lambda m: m["files"].update({place: m["files"].pop(inside.name)}))
        inside.unlink()

    return spoil


def linked(folder: Path) -> None:
    """Put a link to the same bytes outside in the place of a file."""
    inside = folder / "relu.inputs.safetensors"
    shutil.move(inside, folder.parent / inside.name)
    inside.symlink_to(folder.parent / inside.name)


def flip(name: str, place: int) -> Callable[[Path], None]:
    """Change one bit of a file."""

    def spoil(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[place] ^= 1
        (folder / name).write_bytes(content)

    return spoil


def shorten(file: Path) -> None:
    """Cut a file short."""
    file.write_bytes(file.read_bytes()[:-8])


SPOILT_VECTORS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a bit of the manifest": (flip("manifest.json", 500), "manifest.json: it is not the file that was written"),
    "a bit of its digest": (flip("manifest.json.sha256", 3), "manifest.json: it is not the file that was written"),
    "a bit of a tensor": (flip("relu.expected.safetensors", -1), "relu.expected.safetensors: it is not"),
    "a bit of a header": (flip("relu.inputs.safetensors", 20), "relu.inputs.safetensors: it is not the file"),
    "a short file": (lambda folder: shorten(folder / "relu.inputs.safetensors"), "relu.inputs.safetensors: it is not"),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "manifest.json: no such file"),
    "no digest": (lambda folder: (folder / "manifest.json.sha256").unlink(), "manifest.json.sha256: no such file"),
    "no file": (lambda folder: (folder / "relu.inputs.safetensors").unlink(), "relu.inputs.safetensors: no such file"),
    "a path upwards": (elsewhere("../outside.safetensors"), "leaves the folder"),
    "an absolute path": (elsewhere("{folder}/outside.safetensors"), "leaves the folder"),
    "a path upwards of Windows": (elsewhere("..\\outside.safetensors"), "leaves the folder"),
    "a link": (linked, "relu.inputs.safetensors: a link"),
    "another version": (
        lambda folder: rewrite(folder, lambda m: m.update(spec_version="9.9.9")), "it is of specification 9.9.9"
    ),
    "another format": (lambda folder: rewrite(folder, lambda m: m.update(format="x")), "its format is 'x'"),
    "a case twice": (
        lambda folder: rewrite(folder, lambda m: m["cases"].append(m["cases"][0])), "names and tensors of its files"
    ),
    "a case too few": (lambda folder: rewrite(folder, lambda m: m["cases"].pop(0)), "names and tensors of its files"),
    "another shape": (
        lambda folder: rewrite(folder, lambda m: m["cases"][0]["results"][0].update(shape=[1])), "unlike its entry"
    ),
    "no cases": (lambda folder: rewrite(folder, lambda m: m.pop("cases")), "not in the form of vectors.schema.json"),
    "cases of another form": (
        lambda folder: rewrite(folder, lambda m: m.update(cases=[3])), "not in the form of vectors.schema.json"
    ),
}  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILT_VECTORS)
def test_vectors_that_are_not_whole_are_refused(folder, outputs, spoil) -> None:
    """What was damaged, is of another version or leads outside is not used at all."""
    change, said = SPOILT_VECTORS[spoil]
    change(folder)
    with pytest.raises(CannotRun) as problem:
        verify(folder, outputs)
    assert said in str(problem.value)
    assert "\n" not in str(problem.value)


def told(**changes: Any) -> Callable[[Path], None]:
    """Change answers.json."""

    def spoil(outputs: Path) -> None:
        answers = json.loads((outputs / ANSWERS).read_text()) | changes
        (outputs / ANSWERS).write_text(json.dumps(answers))

    return spoil


def tensors_of(outputs: Path, *, file: str = "more.safetensors", metadata: Any = METADATA, **arrays: Any) -> None:
    """Write one more file of answers."""
    write_tensors(outputs / file, arrays, metadata)


def header_of(outputs: Path, change: Callable[[bytes], bytes], *, more: bytes = b"") -> None:
    """Change the header of the answers, and its length with it, and put more data at the end."""
    file = outputs / "answers.safetensors"
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = change(content[8:end])
    file.write_bytes(len(header).to_bytes(8, "little") + header + content[end:] + more)


FIRST = b'"adamw_step.plain.0/result.0":{"dtype":"F64","shape":['


def twice(header: bytes) -> bytes:
    """Let the first tensor stand twice in the header."""
    start = header.index(b'"adamw')
    return header[:start] + header[start : header.index(b"},", start) + 2] + header[start:]


def overlapping(header: bytes) -> bytes:
    """Let the second tensor, which is as large as the first, lie where that lies."""
    first, second = re.findall(rb'"data_offsets":\[[0-9, ]+\]', header)[:2]
    return header.replace(second, first, 1)


SPOILT_ANSWERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no answers.json": (lambda outputs: (outputs / ANSWERS).unlink(), "answers.json: no such file"),
    "no JSON": (lambda outputs: (outputs / ANSWERS).write_text("{"), "answers.json: "),
    "a field twice": (
        lambda outputs: (outputs / ANSWERS).write_text('{"dtype": "float64", "dtype": "float32"}'), "stands twice"
    ),
    "no object": (lambda outputs: (outputs / ANSWERS).write_text("[]"), "answers.json: it must be an object"),
    "another version": (told(spec_version="0.0.1"), "answers.json: it is of specification 0.0.1"),
    "another format": (told(format="answers"), "answers.json: its format is 'answers'"),
    "another dtype": (told(dtype="float16"), "dtype must be float64 or float32"),
    "an unknown field": (told(mine=1), "answers.json: it must be an object with no other fields"),
    "an unknown case": (told(unsupported={"relu.no_such": ""}), "'relu.no_such' is not a case"),
    "a reason for each": (told(unsupported=["relu.plain.0"]), "unsupported gives a reason"),
    "a case that is no name": (told(refused=[["relu.plain.0"]]), "refused is a list of cases"),
    "metadata of another form": (
        lambda outputs: header_of(outputs, lambda h: h.replace(b'{"__metadata__":{', b'{"__metadata__":[],"x":{', 1)),
        "metadata is no object",
    ),
    "answered and unsupported": (told(unsupported={"adamw_step.plain.0": "no"}), "or two of these"),
    "refused and unsupported": (told(unsupported={"adamw_step.a_step_of_0": "no"}), "or two of these"),
    "an unknown tensor": (
        lambda outputs: tensors_of(outputs, **{"relu.plain.0/results": np.zeros(2)}), "is not a tensor that is asked"
    ),
    "a tensor in two files": (lambda outputs: tensors_of(outputs, **{NAME: np.zeros(2)}), "is answered twice"),
    "a file of another version": (
        lambda outputs: tensors_of(outputs, metadata={**METADATA, "spec_version": "9"}), "it is of specification 9"
    ),
    "a file without metadata": (lambda outputs: tensors_of(outputs, metadata={}), "its format is None"),
    "a tensor twice in a file": (lambda outputs: header_of(outputs, twice), "stands twice"),
    "a huge header": (
        lambda outputs: (outputs / "more.safetensors").write_bytes(b"\xff" * 7 + b"\x7f{}"), "no safetensors header"
    ),
    "an empty file": (lambda outputs: (outputs / "more.safetensors").write_bytes(b""), "no safetensors header"),
    "a header that is no object": (
        lambda outputs: (outputs / "more.safetensors").write_bytes(b"\x02" + b"\x00" * 7 + b"[]"), "no safetensors file"
    ),
    "a shape beyond the file": (
        lambda outputs: header_of(outputs, lambda h: h.replace(FIRST, FIRST + b"1000000000000,", 1)), "does not fit"
    ),
    "a negative size": (lambda outputs: header_of(outputs, lambda h: h.replace(FIRST, FIRST + b"-1,", 1)), "is none"),
    "an unknown dtype": (
        lambda outputs: header_of(outputs, lambda h: h.replace(b'"dtype":"F64"', b'"dtype":"F16"', 1)), "has dtype F16"
    ),
    "a tensor over another": (lambda outputs: header_of(outputs, overlapping), "does not fit"),
    "less data": (lambda outputs: shorten(outputs / "answers.safetensors"), "does not fit"),
    "more data": (
        lambda outputs: header_of(outputs, lambda h: h + b" ", more=b"12345678"), "bytes of data"
    ),
    "a link": (
        lambda outputs: (outputs / "more.safetensors").symlink_to(outputs / "answers.safetensors"),
        "more.safetensors: a link",
    ),
}  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILT_ANSWERS)
def test_answers_that_cannot_be_believed_are_refused(few, outputs, spoil) -> None:
    """Unknown or double names, another version, and files that are not sound are refused, in one line."""
    change, said = SPOILT_ANSWERS[spoil]
    change(outputs)
    with pytest.raises(CannotRun) as problem:
        verify(few, outputs)
    assert said in str(problem.value)
    assert "\n" not in str(problem.value)


def test_unspoilt_they_pass(folder, outputs) -> None:
    """What the tests above spoil is right before."""
    verification = verify(folder, outputs)
    assert verification.exit_code == 0
    assert len(verdicts_of(verification)) > 10
