"""The page: escaped, self-contained, and in a real browser sortable, reachable by keyboard, phone-wide."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tacit.report.page import (
    Folded,
    Image,
    Link,
    Paragraph,
    Section,
    SortableTable,
    Verbatim,
    render_page,
    show_value,
)

SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="900" height="300"><rect width="900" height="300"/></svg>'
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def page() -> str:
    rows = (("b", 10.0, 1e-3), ("c", 9.0, None), ("a", math.inf, 2e-5))
    grid = SortableTable("scores", ("name", "points", "a quantity with quite a long name"), rows)
    folded = Folded("why", ("<i>", "so"))
    blocks = [Paragraph(("one <b>line</b>",)), Paragraph(("x", "y")), folded, Image(SVG, 'a "box"'), grid]
    return render_page("Title & more", "lead", [Section("What", blocks)])


def test_text_is_escaped_and_nothing_is_loaded() -> None:
    made = page()
    assert "one &lt;b&gt;line&lt;/b&gt;" in made
    assert "<details><summary>why</summary><ul><li>&lt;i&gt;</li>" in made
    assert "<title>Title &amp; more</title>" in made
    assert 'alt="a &quot;box&quot;"' in made
    assert "default-src 'none'" in made
    assert not re.search(r'(src|href)="(?!data:)', made)


def test_links_and_long_texts_are_cells() -> None:
    grid = SortableTable("pages", ("name", "n"), ((Link("a & b", "a/index.html"), "word " * 10),))
    made = render_page("t", "l", [Section("s", [grid])])
    assert '<td><a href="a/index.html">a &amp; b</a></td>' in made
    assert '<td class="long">word word' in made


def test_names_with_hyphens_and_options_are_not_broken() -> None:
    grid = SortableTable("runs", ("name", "n"), (("cdp-sgd", -1), ("two-word name", "1-2 of 3")))
    made = render_page("t", "l", [Section("s", [grid, Verbatim("tacit run --trust sum <x-y>")])])
    assert '<td class="name">cdp-sgd</td><td data-key="-1" class="number">-1</td>' in made
    assert '<td>two-word name</td><td class="beside">1-2 of 3</td>' in made
    assert '>tacit run <span class="name">--trust</span> sum &lt;x-y&gt;</pre>' in made


def test_values_are_shown_for_people() -> None:
    assert [show_value(v) for v in (1 / 3, 7, None, False, "word")] == ["0.3333", "7", "", "no", "word"]


PROBE = """<script>
const shown = () => [...document.querySelectorAll("tbody tr")].map(tr => tr.children[0].textContent).join("");
const buttons = [...document.querySelectorAll("th button")], image = document.querySelector("img"), seen = {};
addEventListener("load", () => {
  seen.start = shown();
  buttons[1].click(); seen.up = shown(); seen.sort = buttons[1].parentElement.getAttribute("aria-sort");
  buttons[1].click(); seen.down = shown();
  buttons[0].click(); seen.words = shown();
  buttons[2].click(); seen.gaps = shown();
  buttons[2].click(); seen.gaps_down = shown();
  seen.focus = buttons.every(b => { b.focus(); return document.activeElement === b; });
  seen.region = [...document.querySelectorAll(".wide, summary")].every(
    part => { part.focus(); return document.activeElement === part; });
  document.querySelector("summary").click(); seen.open = document.querySelector("details").open;
  seen.image = image.complete && image.naturalWidth > 0 && image.getBoundingClientRect().width > 100;
  seen.width = innerWidth; seen.overflow = document.documentElement.scrollWidth - innerWidth;
  const said = document.createElement("pre"); said.id = "seen"; said.textContent = JSON.stringify(seen);
  document.body.append(said);
});
</script></body>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium")
@pytest.mark.parametrize("width", [390, 1280])
def test_in_a_browser(tmp_path: Path, width: int) -> None:
    path = tmp_path / "page.html"
    # A window has a least width in Chromium, a frame has none.
    path.write_text(page().replace("</body>", PROBE))
    (tmp_path / "frame.html").write_text(
        f'<iframe src="page.html" style="width:{width}px;height:700px;border:0"></iframe>'
        "<script>addEventListener('load', () => { const pre = document.createElement('pre'); pre.id = 'seen';"
        "pre.textContent = document.querySelector('iframe').contentDocument.getElementById('seen').textContent;"
        "document.body.append(pre); })</script>"
    )
    done = subprocess.run(
        [
            str(CHROMIUM),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--allow-file-access-from-files",
            "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--virtual-time-budget=4000",
            "--dump-dom",
            (tmp_path / "frame.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout)
    assert found is not None, done.stdout[-2000:]
    seen = json.loads(found.group(1).replace("&amp;", "&"))
    assert (seen["start"], seen["up"], seen["down"], seen["words"]) == ("bca", "cba", "abc", "abc")
    assert (seen["gaps"], seen["gaps_down"]) == ("abc", "bac"), "blank cells last, whichever way"
    assert seen["sort"] == "ascending"
    assert seen["focus"]
    assert seen["region"]
    assert seen["open"]
    assert seen["image"]
    assert seen["width"] == width
    assert seen["overflow"] <= 0
