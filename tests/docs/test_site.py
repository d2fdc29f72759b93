"""The site builds without a warning; it is complete, runs its tutorials and needs no other host."""

from __future__ import annotations

import html
import logging
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import tacit
from tacit.algorithms.registry import ALGORITHMS
from tacit.algorithms.settings import settings_of

ROOT = Path(__file__).parents[2]
HOOKS = ROOT / "scripts" / "site"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The built site. Everything below is checked on this one copy."""
    pytest.importorskip("mkdocs", reason="the site needs the extra: pip install 'tacit[docs]'")
    from mkdocs.__main__ import cli

    place, before = tmp_path_factory.mktemp("site"), set(sys.modules)
    with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        patched.setenv("TACIT_DOCS_QUICK", "1")
        patched.chdir(ROOT)
        with pytest.raises(SystemExit) as ended:
            cli(["build", "--strict", "--site-dir", str(place)])
    assert not ended.value.code, "warnings are errors: run scripts/docs to see them"
    yield place
    logging.getLogger("mkdocs").handlers.clear()
    for name in {path.stem for path in HOOKS.glob("*.py")} - before:
        sys.modules.pop(name, None)


def _text(page: Path) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text()))


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    loaded = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//", re.I)
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    assert [page.name for page in pages if loaded.search(page.read_text())] == []


def test_the_search_works_from_disk(site: Path) -> None:
    index = (site / "search" / "search_index.js").read_text()
    assert "Five hospitals train a model" in index
    assert (
        "search/search_index.js" in (site / "index.html").read_text()
        or "iframe-worker" in (site / "index.html").read_text()
    )


def test_every_setting_of_every_algorithm_is_described(site: Path) -> None:
    chapters = re.split(r"<h2 id=\"", (site / "settings" / "algorithms.html").read_text())
    told = {chapter.partition('"')[0]: chapter for chapter in chapters}
    for name, entry in ALGORITHMS.items():
        for setting in settings_of(entry.make):
            assert f"<td><code>{setting}</code></td>" in told[name], (name, setting)


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    pages = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    rooms = set(re.findall(r"from tacit import (\w+)", Path(tacit.__file__).with_suffix(".pyi").read_text()))
    for name in set(tacit.__all__) - rooms - {"__version__"}:
        assert re.search(rf'id="tacit\.[\w.]+\.{name}"', pages), name
    assert "&gt;&gt;&gt;" in pages.replace('<span class="gp">', "")


def test_the_tutorials_were_run_and_have_their_pictures(site: Path) -> None:
    told = _text(site / "tutorials" / "compare_algorithms.html")
    assert len(re.findall(r"^\S+ +2\.000 +\d", told, re.M)) == 4
    assert "The certificate is valid" not in _text(site / "tutorials" / "five_hospitals.html")
    assert "From what was sent, nobody, not even the server" in _text(site / "tutorials" / "five_hospitals.html")
    accuracies = re.findall(
        r"parameters, test accuracy (0\.\d+)", _text(site / "tutorials" / "own_pytorch_model.html")
    )
    whole, head = map(float, accuracies)
    assert head > whole > 0.5
    for page, picture in (
        ("compare_algorithms", "curves"),
        ("five_hospitals", "rehearsal"),
        ("own_pytorch_model", "fine_tuning"),
    ):
        assert f'src="{picture}.png"' in (site / "tutorials" / f"{page}.html").read_text()
        assert (site / "tutorials" / f"{picture}.png").stat().st_size > 10_000


def test_what_a_tutorial_shows_can_be_typed_and_names_no_folder_of_the_build(site: Path) -> None:
    for page in (site / "tutorials").glob("*.html"):
        told = _text(page)
        assert {name for name in re.findall(r"\$\{?(\w+)", told) if f"{name}=" not in told} == set(), page.name
        assert tempfile.gettempdir() + "/" not in told


def test_results_have_charts_and_evidence_below_its_claim(site: Path) -> None:
    page = (site / "results" / "full" / "isrl-fig5.html").read_text()
    assert page.count("<figcaption>") == 2
    assert re.search(r"<li>[^<]*Not decided[^<]*<ul>", page)


def test_a_setting_without_a_meaning_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HOOKS)
    import settings

    with pytest.raises(ValueError, match="settings without a meaning: pace"):
        settings._table([("pace", "", 1, int)])
