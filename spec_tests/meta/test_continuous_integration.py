"""What the pages and the pre-commit hook say to type can be typed."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from spec_tests.kit.cli import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("continuous-integration.md", "vectors.md")

pytestmark = pytest.mark.skipif(
    not (ROOT / "docs").is_dir(), reason="the pages are in the repository, not in the installed package"
)

COMMANDS = typer.main.get_command(app).commands


def hook() -> dict[str, str]:
    """Read the one hook of `.pre-commit-hooks.yaml`, a list of one mapping of words."""
    lines = (ROOT / ".pre-commit-hooks.yaml").read_text().splitlines()
    found = [re.fullmatch(r"(- |  )(\w+): (\S.*)", line) for line in lines]
    assert all(found), "every line is `  key: value`, and so YAML"
    assert [match[1] for match in found] == ["- ", *["  "] * (len(found) - 1)], "one hook"
    return {match[2]: match[3] for match in found}


def refused(line: str) -> str:
    """Say what of a command line the program does not know."""
    _, name, *arguments = shlex.split(line)
    if name not in COMMANDS:
        return f"{name} is no command"
    known = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    return ", ".join(argument for argument in arguments if argument.startswith("--") and argument not in known)


def test_the_hook_runs_a_command_that_is_there() -> None:
    """The hook names itself and a command of the program, which takes any number of files."""
    declared = hook()
    assert declared["id"] == "transformer-spec-check"
    assert declared["language"] == "python"
    assert refused(declared["entry"]) == ""
    (files,) = [p for p in COMMANDS[declared["entry"].split()[1]].params if p.param_type_name == "argument"]
    assert files.nargs == -1


def test_the_hook_chooses_subject_files() -> None:
    """By default the hook runs on Python files in a folder of subjects, and on no others."""
    chosen = re.compile(hook()["files"])
    assert chosen.search("examples/subjects/softmax.py")
    assert chosen.search("subjects/mine.py")
    assert not chosen.search("subjects/mine.xfails.toml")
    assert not chosen.search("my_subjects/mine.py")


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_says_to_type_can_be_typed(page: str) -> None:
    """Every command line of the page names a command and options that there are."""
    text = (ROOT / "docs" / "en" / "check" / page).read_text()
    lines = re.findall(r"^ +(?:- run: |entry: )?(transformer-spec [^#\n]+)", text, re.MULTILINE)
    assert len(lines) >= 2
    assert [(line, problem) for line in lines if (problem := refused(line))] == []


def test_a_command_line_that_cannot_be_typed_is_found() -> None:
    """The test above can fail."""
    assert refused("transformer-spec chek subject.py") == "chek is no command"
    assert refused("transformer-spec check subject.py --jsn report.json") == "--jsn"


def test_several_files_end_with_the_worst_exit_code(capsys, tmp_path) -> None:
    """check-files goes on after a subject that cannot run, and ends with 1 if another failed, else with 2."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def perplexity(total_loss, n_tokens):\n    return 0.0\n")

    def code_of(*files: Path) -> int:
        with pytest.raises(SystemExit) as end:
            app(["check-files", "--max-examples", "1", *map(str, files)])
        return end.value.code

    missing = tmp_path / "missing.py"
    assert code_of(missing) == 2
    assert code_of(missing, wrong) == 1
    said = capsys.readouterr()
    assert said.err.count("no such file") == 2
    assert "FAILED perplexity." in said.out
