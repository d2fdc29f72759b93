"""`tacit account`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import complete
from tacit.cli import options as o
from tacit.cli.recipe_options import only_given, recipe_from
from tacit.errors import RequestError

if TYPE_CHECKING:
    from tacit.privacy.accountant.cost import Cost
    from tacit.privacy.promises.protection import Protection

HELP = """Show the privacy cost of a recipe, a run or plain numbers, and who is protected against whom.

For a run directory, the cost is recomputed from the ledger alone and compared with the summary; the exit code is
1 if they differ. For a silo's folder (or its state folder): what is spent of its policy, run by run, and what is
left. Plain numbers: [bold]--sampling poisson --rate 0.01 --noise-multiplier 1.1 --rounds 1000 --delta 1e-5[/]."""


def account(
    path: Annotated[
        Path | None, typer.Argument(help="A recipe in TOML, a run directory, or a silo's folder.")
    ] = None,
    sampling: Annotated[
        str | None,
        typer.Option(
            help="poisson, without-replacement, with-replacement, full or one-pass.",
            autocompletion=complete.samplings,
        ),
    ] = None,
    adjacency: Annotated[
        str | None,
        typer.Option(
            help="replace-one or add-remove. [dim]Default: replace-one.[/]",
            autocompletion=complete.words("replace-one", "add-remove"),
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="The chance that a record is drawn in a round.")] = None,
    records: Annotated[int | None, typer.Option(help="Records of a client; with --batch, not --rate.")] = None,
    batch: Annotated[int | None, typer.Option(help="Records drawn per round, for fixed batch sizes.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise std on the sum, divided by the bound of one record.")
    ] = None,
    rounds: o.Rounds = None,
    delta: o.Delta = None,
    published: Annotated[
        str | None,
        typer.Option(
            metavar="PAPER",
            autocompletion=complete.papers,
            help="soteriafl, isrl-dp, fed-spa or norm-fedavg: the true epsilons behind the paper's labels, or "
            "behind --epsilon, --delta, --records, --batch, --rounds.",
        ),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="The paper's label, for --published.")] = None,
    local_steps: Annotated[int | None, typer.Option(help="Steps per round, for --published fed-spa.")] = None,
    group: Annotated[
        list[int] | None,
        typer.Option(help="Size of a group of records; may be repeated. [dim]Default: 2, 10.[/]"),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Save the curves as a figure (.png, .svg, .pdf).")] = None,
    data_dir: o.DataDir = None,
    as_json: o.Json = False,
    settings: o.Set = None,
) -> None:
    """Account for a recipe, a run, plain numbers or a paper."""
    numbers = only_given(
        sampling=sampling, adjacency=adjacency, rate=rate, records=records, batch=batch,
        noise_multiplier=noise_multiplier, rounds=rounds, delta=delta, epsilon=epsilon, local_steps=local_steps,
    )  # fmt: skip
    sizes = group or [2, 10]
    if settings and (path is None or path.is_dir()):
        raise RequestError("--set changes a recipe: give a recipe file, or leave out --set")
    if published is not None:
        _published(published, path, numbers, plot, as_json)
    elif path is None:
        _numbers(numbers, sizes, plot, as_json)
    elif numbers:
        raise RequestError(
            f"{_flags(numbers)} cannot be combined with {path}, which has its own numbers; use --set for a recipe"
        )
    elif path.is_dir() and _is_silo(path):
        _silo(path, plot, as_json)
    elif path.is_dir():
        _refuse_server(path)
        _run(path, sizes, plot, as_json)
    elif not path.exists() and path.suffix != ".toml":
        raise RequestError(
            f"{path} does not exist: name a run's directory, a recipe, or a silo's folder or its state. A silo "
            "has no state before its first run"
        )
    else:
        _recipe(path, sizes, settings, data_dir, plot, as_json)


def _refuse_server(path: Path) -> None:
    """A deployment's server holds no ledger; say who does."""
    state = next((s for s in (path / "server" / "state", path / "state") if s.is_dir()), path)
    if (state / "certificate.json").exists() and not (path / "ledger.jsonl").exists():
        raise RequestError(
            f"{path} belongs to a deployment's server, which has no ledger: every silo has its own. Check them "
            f"all with `tacit verify {state / 'certificate.json'}`, or give a silo's folder"
        )


def _numbers(numbers: dict[str, Any], groups: list[int], plot: Path | None, as_json: bool) -> None:
    from tacit.cli.show_account import show_cost, show_protection
    from tacit.privacy import Adjacency, Guarantee
    from tacit.privacy.accountant.cost import cost_of, release_of
    from tacit.privacy.promises.protection import protection

    missing = [name for name in ("sampling", "noise_multiplier", "rounds", "delta") if name not in numbers]
    if missing:
        raise RequestError(
            f"{_flags(missing)} missing: tacit account needs a recipe, a run directory, --published PAPER, or "
            "--sampling, --noise-multiplier, --rounds and --delta with --rate (or --records and --batch)"
        )
    labels = [name for name in ("epsilon", "local_steps") if name in numbers]
    if labels:
        raise RequestError(f"{_flags(labels)} works only with --published; leave it out")
    rounds, delta, records = numbers["rounds"], numbers["delta"], numbers.get("records")
    release = release_of(
        numbers["sampling"], numbers["noise_multiplier"], rounds=rounds, rate=numbers.get("rate"),
        records=records, batch=numbers.get("batch"),
    )  # fmt: skip
    cost = cost_of(release, rounds, delta, Adjacency(numbers.get("adjacency", "replace-one")))
    guarantee = Guarantee((cost.event,), delta=delta, adjacency=cost.adjacency)
    rows = protection(guarantee, records=None if records is None else [records], groups=groups)
    figure = _save(cost, plot)
    if as_json:
        _print({"source": "numbers", **cost.to_dict()}, rows, figure)
    else:
        show_cost(cost)
        show_protection(rows)


def _recipe(
    path: Path,
    groups: list[int],
    settings: list[str] | None,
    data_dir: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    from tacit.cli.show_account import show_cost, show_protection
    from tacit.engine.account import account_recipe
    from tacit.privacy.promises.protection import protection

    found = account_recipe(recipe_from(path, {}, settings), data_dir=data_dir)
    made = found.plan
    rows = protection(
        found.guarantee, beside=made.calibration.beside, records=found.records, groups=groups, whole=made.clients
    )
    figure = _save(found.cost, plot)
    multipliers = [group.noise_multiplier for group in made.calibration.groups]
    name, clients = made.algorithm.name, made.federation.clients
    if as_json:
        facts = {
            "source": "recipe",
            "algorithm": name,
            "clients": clients,
            "noise_multiplier_range": [min(multipliers), max(multipliers)],
            "promise": found.guarantee.sentence(),
        }
        _print({**facts, **found.cost.to_dict(), "epsilon": found.guarantee.epsilon}, rows, figure)
    else:
        ends = dict.fromkeys(f"{end:.4g}" for end in (min(multipliers), max(multipliers)))
        noise = f"{' to '.join(ends)} times the bound"
        show_cost(found.cost, {"algorithm": name, "clients": str(clients), "noise": noise})
        show_protection(rows)


def _run(path: Path, groups: list[int], plot: Path | None, as_json: bool) -> None:
    from tacit.cli.show_account import show_protection, show_run
    from tacit.engine.account import account_run
    from tacit.privacy.promises.protection import protection

    found = account_run(path)
    rows: tuple[Protection, ...] = ()
    if found.guarantee is not None:
        rows = protection(found.guarantee, beside=found.beside, records=found.records, groups=groups)
    figure = None if found.cost is None else _save(found.cost, plot)
    if as_json:
        _print({"source": "run", **found.to_dict()}, rows, figure)
    else:
        show_run(found)
        show_protection(rows)
    if found.differences:
        raise typer.Exit(1)


def _is_silo(path: Path) -> bool:
    from tacit.deploy.spending import is_silo_state

    return is_silo_state(path)


def _silo(path: Path, plot: Path | None, as_json: bool) -> None:
    from tacit.cli.show_account import show_spending
    from tacit.deploy.spending import spending_in

    if plot is not None:
        raise RequestError("--plot works for a recipe or a run, not for a silo's ledger")
    found = spending_in(path)
    if as_json:
        print(json.dumps({"source": "silo", **found.to_dict()}))
    else:
        show_spending(str(path), found)


def _published(name: str, path: Path | None, numbers: dict[str, Any], plot: Path | None, as_json: bool) -> None:
    from tacit.cli.show_account import show_published
    from tacit.theory.published import calculate, paper

    if path is not None or plot is not None:
        raise RequestError("--published cannot be combined with a recipe, a run directory or --plot")
    found = paper(name)
    if not numbers:
        rows = found.table()
    else:
        needed = ("epsilon", "delta", "records", "batch", "rounds")
        missing = [name for name in needed if name not in numbers]
        unused = [name for name in numbers if name not in (*needed, "local_steps")]
        if missing or unused:
            wrong = f"{_flags(missing)} missing" if missing else f"{_flags(unused)} is not among them"
            raise RequestError(f"--published with numbers takes {_flags(needed)}: {wrong}")
        rows = (calculate(name, **numbers),)
    if as_json:
        print(json.dumps({"source": "published", "paper": found.title, "rows": [row.to_dict() for row in rows]}))
    else:
        show_published(found.title, rows)


def _save(cost: Cost, plot: Path | None) -> Path | None:
    if plot is None:
        return None
    from tacit.report.privacy import plot_cost

    try:
        plot_cost(cost).savefig(plot, dpi=140)
    except (OSError, ValueError) as error:
        raise RequestError(f"--plot {plot} cannot be written: {error}") from error
    return plot


def _print(facts: dict[str, Any], rows: tuple[Protection, ...], figure: Path | None) -> None:
    figure_name = None if figure is None else str(figure)
    print(json.dumps({**facts, "protection": [row.to_dict() for row in rows], "figure": figure_name}))


def _flags(names: Iterable[str]) -> str:
    return ", ".join("--" + name.replace("_", "-") for name in names)
