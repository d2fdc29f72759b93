"""Writes the chapter of results from finished runs: docs/results/full, and docs/results/reproduce.md over all.

    python benchmarks/chapter.py reproduced docs/results

A page in full replaces the quick one. Pages without a newer run stay as they are, and the index says so.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from tacit.experiments.experiment import VERDICTS, Experiment
from tacit.experiments.registry import EXPERIMENTS
from tacit.theory.published import papers, schemes

PAPERS = {"soteriafl": "SoteriaFL", "isrl": "ISRL-DP", "fed-spa": "Fed-SPA", "norm": "DP-NormFedAvg"}
PROMISE = "At the epsilon that the paper claims"
COLOURS = 64
REPLACED = {
    "fed-spa-table1": ("fed-spa-mnist.md", "Fed-SPA on MNIST"),
    "norm-table2a": ("norm-fashion-mnist.md", "DP-NormFedAvg on Fashion-MNIST"),
}
"""Pages about earlier, partial runs, which go when the experiment has been run in full."""

SHORTENED = {"fed-spa-table2": "10 of 200 rounds"}
"""Experiments that are shorter than the paper's even in full, because those would take days."""


@dataclass(frozen=True)
class Page:
    """A page about an experiment, read from its Markdown."""

    experiment: Experiment
    path: Path

    @property
    def kind(self) -> str:
        """How much was run: the folder's name."""
        return self.path.parent.name

    @property
    def text(self) -> str:
        return self.path.read_text()

    def claims(self) -> list[tuple[str, str]]:
        """Verdict and claim."""
        found = re.findall(rf"^- ({'|'.join(VERDICTS.values())}): (.*)$", self.text, re.MULTILINE)
        return [(verdict, claim) for verdict, claim in found]

    def fact(self, name: str) -> str:
        """The value of a line of "How it was made"."""
        found = re.search(rf"^- {name}: (.*)$", self.text, re.MULTILINE)
        return "" if found is None else found[1]

    @property
    def seeds(self) -> str:
        listed = self.fact("seeds")
        return str(listed.count(",") + 1) if listed else ""

    @property
    def minutes(self) -> str:
        seconds = re.match(r"\d+", self.fact("processor time"))
        return f"{int(seconds[0]) / 60:.1f}" if seconds else ""

    @property
    def promise(self) -> str:
        return next((verdict for verdict, claim in self.claims() if claim.startswith(PROMISE)), "")


def publish(name: str, runs: Path, results: Path) -> None:
    """Copies one finished page with its figures, and removes what it replaces."""
    summary = (runs / name / "summary.md").read_text()
    if "\n- mode: full\n" not in summary:
        raise SystemExit(f"{runs / name} is not a run in full, which belongs into {results / 'full'}")
    shown = []
    (results / "full").mkdir(parents=True, exist_ok=True)
    for figure in sorted((runs / name).glob("*.png")):
        target = results / "full" / f"{name}-{figure.name}"
        with Image.open(figure) as image:
            image.convert("RGB").quantize(COLOURS).save(target, optimize=True)
        shown.append(f"![{figure.stem.replace('-', ' ')}]({target.name})\n")
    # The figures come before the claims.
    text = summary.replace("## Claims\n", "\n".join([*shown, "## Claims\n"]), 1)
    (results / "full" / f"{name}.md").write_text(text)
    for old in (f"quick/{name}.md", *REPLACED.get(name, ())[:1]):
        (results / old).unlink(missing_ok=True)


def pages_of(results: Path) -> list[Page]:
    """The best page of every experiment that has one."""
    found = []
    for name, experiment in EXPERIMENTS.items():
        places = [results / kind / f"{name}.md" for kind in ("full", "quick")]
        found += [Page(experiment, place) for place in places if place.is_file()][:1]
    return found


def not_private() -> list[str]:
    """What the printed noise is worth: labels beside the epsilons that the accountant derives, as factors."""
    lines = ["| paper | setting | labels | real epsilons | factor |", "| --- | --- | --- | --- | --- |"]
    for paper in papers.PAPERS.values():
        by_setting: dict[str, list[tuple[float, float]]] = {}
        for row in paper.table():
            readings = [
                row.true[name] for name in (schemes.WITH_REPLACEMENT, "Poisson, replace-one") if name in row.true
            ]
            if readings:
                by_setting.setdefault(f"{row.setting} {row.remark}".strip(), []).append(
                    (row.label, max(readings))
                )
        for setting, pairs in by_setting.items():
            worst = max(real / label for label, real in pairs)
            if worst > 1:
                told = [", ".join(f"{one[k]:.3g}" for one in pairs) for k in (0, 1)]
                lines.append(
                    f"| {paper.title.split('(')[0].strip()} | {setting} | {told[0]} | {told[1]} | {worst:.3g} |"
                )
    return lines


def _counted(pages: Sequence[Page]) -> str:
    counts = Counter(verdict for page in pages for verdict, _ in page.claims())
    return ", ".join(f"{counts[verdict]} {verdict.lower()}" for verdict in VERDICTS.values())


def _table(pages: Sequence[Page], results: Path, current: Set[str]) -> list[str]:
    lines = [
        "| experiment | what | run | seeds | processor minutes | borne out | not | not decided | promise |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    known = {page.experiment.name: page for page in pages}
    for name, experiment in EXPERIMENTS.items():
        page = known.get(name)
        if page is None:
            lines.append(f"| {name} | {experiment.title} | not run | | | | | | |")
            continue
        counts = Counter(verdict for verdict, _ in page.claims())
        link = f"[{name}]({page.path.relative_to(results).as_posix()})"
        numbers = " | ".join(str(counts[verdict]) for verdict in VERDICTS.values())
        run = page.kind + (", earlier version" if page.kind == "full" and name not in current else "")
        run += f", {SHORTENED[name]}" if page.kind == "full" and name in SHORTENED else ""
        lines.append(
            f"| {link} | {experiment.title} | {run} | {page.seeds} | {page.minutes} | {numbers} | "
            f"{page.promise} |"
        )
    return lines


def _section(page: Page) -> list[str]:
    """A figure beside the paper's statements and their verdicts."""
    name = page.experiment.name
    lines = [f"### {page.experiment.title}", "", f"[{name}](full/{name}.md): {page.experiment.paper}.", ""]
    lines += [f"![{alt}](full/{image})" for alt, image in re.findall(r"!\[(.*?)\]\((.*?)\)", page.text)[:3]]
    lines += ["", *(f"- **{verdict}.** {claim}" for verdict, claim in page.claims()), ""]
    return lines


INTRODUCTION = """# The papers' tables and figures: what came out

Every table and figure was run by `tacit reproduce NAME`. [Reproduce the papers](../reproduce.md) explains the
three modes (as published, true, summed) and when a claim counts as borne out. The page of an experiment has all
its numbers, the evidence for each verdict, its seeds and every departure from the paper.
"""
NOT_PRIVATE = """## What is not private as printed

Epsilons that the papers' noise really gives, by the exact accountant, where they are larger than the label: the
largest over the readings of how records are drawn (`tacit account --published NAME` has all of them). For Local
SGD, every local step counts as a release, the only bound that is proved.

Not in the table, because it has no finite factor or none that is printed:

- SoteriaFL's authors clip the mean of a batch, which bounds no record's influence. So does ISRL-DP's insurance
  code.
- ISRL-DP reads L from the records (twice the longest), which no epsilon covers.
- Fed-SPA clips at a median of the records that nothing protects, and counts the rounds in which an agent takes
  part on average instead of the busiest agent's.
- DP-NormFedAvg leaves the constant of its noise open. Its label can be true for sums with secret participants; a
  single message with the same noise is worth an epsilon of 100 on the synthetic problem.
"""


def index(pages: Sequence[Page], results: Path, current: Set[str]) -> str:
    """The chapter's first page; `current` are the experiments whose pages are of the present code."""
    full = [page for page in pages if page.kind == "full"]
    quick = [page for page in pages if page.kind == "quick"]
    told = [f"In full: {len(full)} of {len(EXPERIMENTS)} experiments. Their claims: {_counted(full)}."]
    for name in (page.experiment.name for page in full if page.experiment.name in SHORTENED):
        told.append(f"Of these, {name} has only {SHORTENED[name]}; all of it would take days.")
    hours = sum(float(page.minutes or 0) for page in full) / 60
    told.append(f"They took {hours:.1f} hours of a processor, counting runs twice that two pages share.")
    if quick:
        told += [
            f"Run only in quick versions (one or two seeds, fewer rounds): {len(quick)} of them,",
            f"whose verdicts say little: {_counted(quick)}.",
        ]
    older = [f"[{title}]({old})" for old, title in REPLACED.values() if (results / old).is_file()]
    if older:
        told.append(f"Pages about earlier, partial runs: {', '.join(older)}.")
    parts = [INTRODUCTION, *told, "", *_table(pages, results, current), "", NOT_PRIVATE, *not_private(), ""]
    for prefix, title in PAPERS.items():
        own = [page for page in full if page.experiment.name.startswith(prefix)]
        if own:
            parts += [f"## {title}", "", *(line for page in own for line in _section(page))]
    return "\n".join(parts).rstrip() + "\n"


def main(runs: Path, results: Path) -> None:
    """Publishes every finished page, and writes the index."""
    finished = {name for name in EXPERIMENTS if (runs / name / "status.json").is_file()}
    for name in finished:
        publish(name, runs, results)
    (results / "reproduce.md").write_text(index(pages_of(results), results, finished))
    print(f"{len(finished)} of {len(EXPERIMENTS)} experiments are in {results / 'full'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
