"""The pages of the site that are made when it is built: settings, API, changelog, lists of results, tutorials.

A hook of mkdocs (see mkdocs.yml). Nothing that is made here is kept in the repository.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import api
import charts
import settings
import tutorials
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
SCALES = {"full": "as in the paper", "quick": "with fewer seeds and rounds"}
"""The folders of docs/results with the pages of reproductions."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put pages whose number varies into the navigation."""
    _extend(config.nav, "Settings", settings.navigation())
    _extend(config.nav, "API", api.navigation())
    _extend(config.nav, "Tutorials", tutorials.navigation())
    _extend(
        config.nav, "Results", [{f"Reproductions, {told}": _results(folder)} for folder, told in SCALES.items()]
    )
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    made: dict[str, str | bytes] = {"changelog.md": _changelog()}
    made |= {f"results/{folder}/index.md": _list_of_results(folder, told) for folder, told in SCALES.items()}
    made |= settings.pages() | api.pages() | tutorials.pages()
    for place, content in made.items():
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to folders of results lead to their lists; results get their charts; guides are found first."""
    if page.file.src_uri.startswith(("tutorials/", "results/")):
        page.meta["hide"] = ["toc"]  # else wide tables and lines of code are cut
    if page.file.src_uri.startswith(("api/", "changelog", "results/")):
        page.meta["search"] = {"boost": 0.3}  # who searches for a word wants to read about it first
    if page.file.src_uri.startswith(tuple(f"results/{folder}/" for folder in SCALES)):
        # Evidence below a claim: python-markdown wants four spaces.
        markdown = charts.with_charts(re.sub(r"^  - ", "    - ", markdown, flags=re.M))
    return re.sub(rf"\]\(((?:results/)?(?:{'|'.join(SCALES)}))\)", r"](\1/index.md)", markdown)


def _extend(nav: list[Any], title: str, entries: list[Any]) -> None:
    next(part[title] for part in nav if title in part).extend(entries)


def _changelog() -> str:
    return (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](")


def _pages_of_results(folder: str) -> dict[str, str]:
    """The pages of a folder of results, with their titles."""
    found = sorted((ROOT / "docs" / "results" / folder).glob("*.md"))
    return {path.name: path.read_text().partition("\n")[0].removeprefix("# ") for path in found}


def _results(folder: str) -> list[Any]:
    return [f"results/{folder}/index.md", *(f"results/{folder}/{name}" for name in _pages_of_results(folder))]


def _list_of_results(folder: str, told: str) -> str:
    rows = [
        f"- [{title}]({name}): `tacit reproduce {Path(name).stem}`"
        for name, title in _pages_of_results(folder).items()
    ]
    return f"# Reproductions, {told}\n\n" + "\n".join(rows) + "\n"
