"""Write the page of the contract from the manifest and the docstrings: python -m website.contract_page."""

from pathlib import Path

from reference.components import COMPONENTS
from spec_tests.kit.describe import first_sentence, plain_signature, properties, shapes

PAGE = Path(__file__).parents[1] / "docs" / "en" / "reference" / "components.md"


def page() -> str:
    """Give the page: each component with its meaning, formula, arguments, shapes and source."""
    lines = [
        "# The components",
        "",
        "Written by `python -m website.contract_page` from the signatures and docstrings of `reference.numpy`; the",
        "full meaning, errors included, stands there and in `transformer-spec explain COMPONENT`. Axis names are those",
        "of `reference/axes.py`; a `*` axis is any number of axes, a `#` one may broadcast.",
    ]
    for name, component in COMPONENTS.items():
        lines += [
            "",
            f"## {name}",
            "",
            first_sentence(name),
            "",
            f"    {component.formula}",
            "",
            f"`{plain_signature(name)}`",
            "",
            "| argument | kind and axes |",
            "| --- | --- |",
            *(f"| {argument} | {kind} |" for argument, kind in shapes(name)),
            "",
            f"{len(properties(name))} properties. Source: {component.source}.",
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
