"""The generator's configuration of each language, with its navigation."""

from pathlib import Path
from typing import Any

from reference.components import COMPONENTS
from website.words import STEMS

NAMES = {"en": "Transformer, executable", "zh": "可执行的 Transformer"}
URL = "http://127.0.0.1:8000/"

SECTIONS = {
    "en": {"home": "Home", "flow": "Data flow", "path": "Build it from nothing", "components": "Components",
           "claims": "Claims", "check": "Check your own", "live": "Live", "specification": "Specification",
           "reference": "Reference", "api": "API", "decisions": "Decisions", "overview": "Overview"},
    "zh": {"home": "首页", "flow": "数据流", "path": "从零搭起", "components": "组件", "claims": "逐条核对",
           "check": "检查你的实现", "live": "在线运行", "overview": "概览"},
}  # fmt: skip

CHECK = ("index", "function", "module", "jax", "program", "subjects", "process-subjects", "vectors",
         "continuous-integration", "gallery", "strength")  # fmt: skip
REFERENCE = ("components", "glossary", "versioning", "changelog")


def navigation(language: str, folder: Path) -> list[Any]:
    """Give the navigation: sections in the order in which one reads them, pages by their own titles."""
    title = SECTIONS[language]
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*.md")}

    def section(name: str, stems: list[str]) -> dict[str, list[str]]:
        return {title[name]: [f"{name}/{stem}.md" for stem in stems if f"{name}/{stem}.md" in there]}

    path = sorted(Path(p).stem for p in there if p.startswith("path/") and p != "path/index.md")
    by_stem: dict[str, list[str]] = {}
    for component in COMPONENTS.values():
        by_stem.setdefault(STEMS[language][component.stem], []).append(f"components/{component.name}.md")
    found = [
        {title["home"]: "index.md"},
        section("path", ["index", *path]),
        {
            title["components"]: [
                "components/index.md",
                {title["flow"]: "flow.md"},
                *({k: v} for k, v in by_stem.items()),
            ]
        },
        {title["claims"]: "claims.md"},
        section("check", list(CHECK)),
        {title["live"]: "live.md"},
    ]
    if language == "en":
        specification = sorted(Path(p).stem for p in there if p.startswith("specification/") and "index" not in p)
        api = [Path(p).stem for p in sorted(there) if p.startswith("api/") and "index" not in p]
        decisions = [Path(p).stem for p in sorted(there) if p.startswith("decisions/") and "index" not in p]
        found += [
            section("specification", ["index", *specification]),
            {title["reference"]: [
                *(f"reference/{stem}.md" for stem in REFERENCE), section("api", ["index", *api]),
                section("decisions", ["index", *decisions])]},
        ]  # fmt: skip
    return found


def configuration(language: str, folder: Path, root: Path) -> dict[str, Any]:
    """Give mkdocs.yml as a tree; it must stand beside the `folder` of the pages, and so does what is built, `out`."""
    python = {
        "paths": [str(root)],
        "options": {
            "docstring_style": "google", "show_root_heading": True, "show_signature_annotations": True,
            "separate_signature": True, "signature_crossrefs": True, "line_length": 100, "show_source": False,
            "members_order": "source", "heading_level": 2, "show_symbol_type_heading": True,
            "show_symbol_type_toc": True, "extensions": [str(root / "website" / "griffe_reading.py")],
        },
    }  # fmt: skip
    toggle = {"en": ("Dark mode", "Light mode"), "zh": ("深色", "浅色")}[language]
    icons = ("material/weather-night", "material/weather-sunny")
    return {
        "site_name": NAMES[language],
        "site_url": URL if language == "en" else f"{URL}{language}/",
        "docs_dir": language,
        "site_dir": "out" if language == "en" else f"out/{language}",
        "strict": True,
        "use_directory_urls": True,
        "theme": {
            "name": "material",
            "language": language,
            "font": False,
            "features": [
                *("content.tabs.link", "content.code.copy", "navigation.tabs", "navigation.top", "navigation.footer"),
                *("navigation.indexes", "navigation.prune", "search.highlight", "search.suggest", "toc.follow"),
            ],
            "palette": [
                {"media": f"(prefers-color-scheme: {mode})", "scheme": scheme, "primary": "indigo",
                 "toggle": {"icon": icon, "name": name}}
                for mode, scheme, icon, name in zip(("light", "dark"), ("default", "slate"), icons, toggle, strict=True)
            ],
        },
        "validation": {
            "nav": {"omitted_files": "ignore", "not_found": "warn", "absolute_links": "warn"},
            "links": {"not_found": "warn", "anchors": "warn", "absolute_links": "warn", "unrecognized_links": "warn"},
        },
        "markdown_extensions": [
            "admonition", "attr_list", "md_in_html", "tables", {"toc": {"permalink": True}}, "pymdownx.details",
            "pymdownx.highlight", "pymdownx.superfences", {"pymdownx.tabbed": {"alternate_style": True}},
            {"pymdownx.arithmatex": {"generic": True}},
        ],
        "plugins": ["search", {"mkdocstrings": {"handlers": {"python": python}}}],
        "extra_css": ["assets/katex/katex.min.css", "assets/extra.css"],
        "nav": navigation(language, folder),
        "extra": {"alternate": [{"name": "English", "link": "/", "lang": "en"},
                                {"name": "简体中文", "link": "/zh/", "lang": "zh"}]},
    }  # fmt: skip
