"""Make the search index light: a reader looks for words, not for lines of code, and every page loads it."""

import json
import re
from pathlib import Path

CODE = re.compile(r"<pre>.*?</pre>", re.DOTALL)
SPACE = re.compile(r"\s+")


def lighten(file: Path) -> None:
    """Take blocks of code out of an index."""
    index = json.loads(file.read_text(encoding="utf-8"))
    for item in index["items"]:
        item["text"] = SPACE.sub(" ", CODE.sub(" ", item["text"])).strip()
    file.write_text(json.dumps(index, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
