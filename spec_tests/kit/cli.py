"""The command `transformer-spec`."""

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

import reference.cli
from reference import SPEC_VERSION
from spec_tests.kit.runner import THOROUGH, TIME_LIMIT, CannotRun, check, one_line_errors
from spec_tests.kit.worker import EXAMPLES

app = typer.Typer(
    name="transformer-spec",
    help="An executable specification of the transformer: check an implementation, read what is specified, train one.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        try:
            package = version("transformer-spec")
        except PackageNotFoundError:
            package = "not installed"
        print(f"transformer-spec {package}, specification {SPEC_VERSION}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show both versions.")] = False,
) -> None:
    pass


@app.command("check")
def check_command(
    subject: Annotated[str | None, typer.Argument(help="A .py file, a dotted module, or torch_nn.")] = None,
    command: Annotated[
        str | None, typer.Option(help="Check a program in any language, which answers in lines of JSON.")
    ] = None,
    component: Annotated[list[str] | None, typer.Option(help="Check this component only; may be repeated.")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", help="Check the properties of this id (a glob); may be repeated.")
    ] = None,
    thorough: Annotated[bool, typer.Option("--thorough", help=f"{THOROUGH} examples a property.")] = False,
    max_examples: Annotated[
        int | None, typer.Option(help=f"Examples a property; {EXAMPLES} unless given, fewer for models.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Draw the examples of this seed (every report shows its own).")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report to this file, too.")] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds that one call may take.")] = TIME_LIMIT,
    all_failures: Annotated[bool, typer.Option("--all-failures", help="Show every failure whole.")] = False,
    replay: Annotated[
        Path | None, typer.Option(help="Make the calls of the failures in this JSON report again, and no others.")
    ] = None,
) -> None:
    """Check somebody's implementation against the specification.

    This runs the subject's code, with your rights: check what you would run. It runs in a process of its own, which
    guards against hangs and crashes, not against malice.

    Exit code 0: all passed (or failed as expected); 1: something failed; 2: could not run.
    """
    from rich.console import Console

    from spec_tests.kit.report import show, write_json

    with one_line_errors():
        if (subject is None) == (command is None):
            raise CannotRun("give a subject, or a program with --command, one of them")
        asked = subject if command is None else f"command:{command}"
        if replay is not None:
            from spec_tests.kit.replay import replay_report, told

            replayed = replay_report(asked, replay, properties or (), time_limit=time_limit)
            print(told(replayed))
            raise typer.Exit(int(any(fails for _, fails, _ in replayed)))
        if thorough and max_examples is not None:
            raise CannotRun("choose --thorough or --max-examples, not both")
        if json_file is not None and not json_file.resolve().parent.is_dir():
            raise CannotRun(f"{json_file}: its folder does not exist")
        examples = THOROUGH if thorough else max_examples
        with _progress() as progress:
            report = check(
                asked,
                component,
                properties=properties or (),
                max_examples=examples,
                seed=seed,
                time_limit=time_limit,
                progress=progress,
            )
        if json_file is not None:
            try:
                write_json(report, json_file)
            except OSError as problem:
                raise CannotRun(f"{json_file}: {problem.strerror}") from problem
        show(report, Console(highlight=False), all_failures=all_failures)
    raise typer.Exit(report.exit_code)


class _progress:  # noqa: N801 (reads as `with _progress()`)
    """Show which property is being checked, on a terminal only."""

    def __enter__(self) -> "_progress":
        from rich.console import Console

        console = Console(stderr=True)
        self.status = console.status("importing the subject") if console.is_terminal else None
        if self.status:
            self.status.start()
        return self

    def __call__(self, event: dict) -> None:
        if self.status and event["event"] == "start":
            self.status.update(event["id"])

    def __exit__(self, *error: object) -> None:
        if self.status:
            self.status.stop()


@app.command("probe")
def probe_command(
    subject: Annotated[str, typer.Argument(help="A .py file, a dotted module, or torch_nn.")],
    component: Annotated[list[str] | None, typer.Option(help="Probe this component only; may be repeated.")] = None,
) -> None:
    """Find out which conventions an implementation follows, and print the declaration for its subject file."""
    from spec_tests.kit.probe import probe
    from spec_tests.kit.runner import known_components

    with one_line_errors():
        print(probe(subject, known_components(component)))


@app.command("list")
def list_command() -> None:
    """List the components of the specification."""
    from reference.components import COMPONENTS
    from spec_tests.kit.describe import counted, first_sentence, properties

    width = max(map(len, COMPONENTS))
    for name, about in COMPONENTS.items():
        stated = counted(properties(name), width=3)
        print(f"{name:<{width}}  {about.stem:<10}  {stated:<35}  {first_sentence(name)}")


@app.command("explain")
def explain_command(component: Annotated[str, typer.Argument(help="The name of a component.")]) -> None:
    """Explain a component: its formula, shapes, options, properties and source."""
    from spec_tests.kit.describe import explanation
    from spec_tests.kit.runner import known_components

    with one_line_errors():
        known_components([component])
    print(explanation(component))


@app.command("pitfalls")
def pitfalls_command(
    which: Annotated[str | None, typer.Argument(help="A component, or the id of one; all unless given.")] = None,
    waiting: Annotated[bool, typer.Option("--waiting", help="List what is not coded, too, and why.")] = False,
) -> None:
    """List the known mistakes; of one its whole text: how it shows, how to mend it, where it was seen."""
    from spec_tests.pitfalls.catalogue import text

    with one_line_errors():
        try:
            print(text(which, waiting=waiting))
        except LookupError as problem:
            raise CannotRun(problem.args[0]) from problem


@app.command("new")
def new_command(file: Annotated[Path, typer.Argument(help="The subject file to write.")]) -> None:
    """Write a subject file to fill in."""
    from spec_tests.kit.describe import template

    with one_line_errors():
        if file.suffix != ".py":
            raise CannotRun(f"{file}: a subject file ends in .py")
        try:
            with file.open("x", encoding="utf-8") as out:
                out.write(template())
        except FileExistsError:
            raise CannotRun(f"{file}: it exists; choose another name") from None
        except OSError as problem:
            raise CannotRun(f"{file}: {problem.strerror}") from problem
    print(f"wrote {file}; fill in what you have, then: transformer-spec check {file}")


@app.command("precision")
def precision_command(
    subject: Annotated[str, typer.Argument(help="A .py file, a dotted module, or torch_nn.")],
    component: Annotated[list[str] | None, typer.Option(help="Measure this component only; may be repeated.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Measure in this dtype only; may be repeated.")] = None,
) -> None:
    """Measure how precise an implementation is in each dtype that it offers, beside a naive run in NumPy.

    This runs the subject's code in this process. Exit code 0: within its bounds; 1: imprecise; 2: could not run.
    """
    from spec_tests.kit.precision import imprecise, precision, show

    with one_line_errors():
        results = precision(subject, component or None, dtype or None)
    print("\n".join(line for result in results for line in show(result)))
    raise typer.Exit(int(any(map(imprecise, results))))


@app.command("check-files")
def check_files_command(
    files: Annotated[list[str], typer.Argument(help="Subjects, each a .py file.")],
    max_examples: Annotated[int | None, typer.Option(help="As for check.")] = None,
) -> None:
    """Check one subject after the other, as a pre-commit hook does; the exit code is the worst of theirs."""
    from rich.console import Console

    from spec_tests.kit.report import show

    codes = set()
    for file in files:
        try:
            with one_line_errors():
                report = check(file, max_examples=max_examples)
            show(report, Console(highlight=False))
            codes.add(report.exit_code)
        except SystemExit:  # this one could not run, and the others can
            codes.add(2)
    raise typer.Exit(1 if 1 in codes else max(codes))


@app.command("vectors")
def vectors_command(
    folder: Annotated[Path, typer.Argument(help="The folder to write; it must be new or empty.")],
) -> None:
    """Write calls of every component, and what should come of them, for programs in any language."""
    from spec_tests.kit.vectors import write_vectors

    with one_line_errors():
        manifest = write_vectors(folder)
    size = sum(file["bytes"] for file in manifest["files"].values())
    print(f"wrote {len(manifest['cases'])} cases, {size / 2**20:.1f} MiB, of specification {SPEC_VERSION} to {folder}")


@app.command("verify")
def verify_command(
    folder: Annotated[Path, typer.Argument(help="The folder that `vectors` wrote.")],
    outputs: Annotated[Path, typer.Argument(help="The folder of the answers.")],
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the verdicts to this file, too.")] = None,
) -> None:
    """Judge somebody's answers to the vectors.

    Exit code 0: all that was answered is right; 1: something is wrong; 2: nothing could be judged.
    """
    from rich.console import Console

    from spec_tests.kit.verify import show, verify, write_json

    with one_line_errors():
        verification = verify(folder, outputs)
        if json_file is not None:
            try:
                write_json(verification, json_file)
            except OSError as problem:
                raise CannotRun(f"{json_file}: {problem.strerror}") from problem
        show(verification, Console(highlight=False))
    raise typer.Exit(verification.exit_code)


app.add_typer(reference.cli.app)  # train, generate, plot


def main() -> None:
    """Run the command."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
