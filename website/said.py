"""The sentences of properties and mistakes in each language: the code says them in English, `chinese/` in Chinese."""

import functools
import tomllib
from pathlib import Path

CHINESE = Path(__file__).parent / "chinese"


def said(sentence: str, language: str) -> str:
    """Give a sentence of the code in a language. Raises ValueError where there is no translation."""
    if language == "en":
        return sentence
    if sentence not in chinese():
        raise ValueError(f"{sentence!r} has no Chinese yet: add it to a file in website/chinese")
    return chinese()[sentence]


@functools.cache
def chinese() -> dict[str, str]:
    """Read all translations. Raises ValueError where a sentence stands twice."""
    read: dict[str, str] = {}
    for file in sorted(CHINESE.glob("*.toml")):
        for pair in tomllib.loads(file.read_text(encoding="utf-8"))["said"]:
            if pair["en"] in read:
                raise ValueError(f"{file.name}: {pair['en']!r} is translated twice; leave one")
            read[pair["en"]] = pair["zh"]
    return read
