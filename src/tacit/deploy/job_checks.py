"""What a job must fulfil before any party agrees to it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tacit.algorithms.registry import algorithm_entry
from tacit.algorithms.trust import Travel
from tacit.data.schema import record_shape
from tacit.deploy.frames import BODY_LIMIT, is_site_name
from tacit.engine.choices import with_defaults
from tacit.engine.fronts import LEARN
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError, count
from tacit.models.registry import ENTRY_POINT
from tacit.privacy import Unit

if TYPE_CHECKING:
    from tacit.deploy.job import Job

MOST_PARAMETERS = BODY_LIMIT // 4
MOST_RECORDS = 2**27
"""The most records, of all sites together, that a job may assume."""
MOST_ROUNDS = 10**6


def check_asked(job: Job) -> None:
    """Refuses sites without a name, endless runs, and recipes that leave a choice open."""
    check_sites(job.sites)
    if (job.recipe.rounds or 0) > MOST_ROUNDS:
        raise RequestError(f"rounds = {job.recipe.rounds} is more than the limit of {MOST_ROUNDS}")
    if job.recipe.data_settings.get("features") == LEARN:
        raise RequestError(
            f'data.features = "{LEARN}" is for simulations and estimators: silos take arrays as they are. Give '
            'the usual size of features, as data.features = "sizes:SIZE", or describe a table by a schema'
        )
    if job.recipe.target_bound == LEARN:
        raise RequestError(
            f'target_bound = "{LEARN}" is for simulations and estimators: give a public bound on the absolute '
            "target (0 for none), or describe a table by a schema"
        )
    if job.shuffled and (job.recipe.model or "").startswith(ENTRY_POINT):
        # Building it means running it, and only silos have a policy that says what they run.
        raise RequestError(
            f"model = {job.recipe.model!r} is code that the shuffler would have to run: use one of tacit's models"
        )
    for name in _open_choices(job):
        raise RequestError(
            f"the recipe leaves {name} open, and in a consortium nobody sees enough to choose it: set it"
        )


def check_agreed(job: Job) -> None:
    """Refuses a job whose parts contradict each other, or that could not be accounted for."""
    if job.recipe.clients not in (None, len(job.sites)):
        raise RequestError(
            f"clients = {job.recipe.clients}, but the job names {len(job.sites)} sites; leave it out"
        )
    check_record(job.feature_shape, job.classes)
    if job.schema is not None and (job.feature_shape, job.classes) != (
        record_shape(job.schema),
        job.schema.classes,
    ):
        raise RequestError(
            f"the schema is about records of shape {list(record_shape(job.schema))} with classes = "
            f"{job.schema.classes}, not {list(job.feature_shape)} and {job.classes}: leave both out"
        )
    least = check_least_records(job.min_records, job.sites)
    if len(set(least.values())) > 1 and algorithm_entry(job.recipe.algorithm).shuffled:
        raise RequestError("behind a shuffler all silos count as equally large: give one min_records for all")
    if job.identities is not None:
        job.identities.check(job.sites)
    # Built here, because a correction that cannot be made, or that is left open, is refused then.
    if job.finals and job.parts.travel is Travel.COUNTED:
        raise RequestError(
            f"no accountant can add an evaluation to the coins of {job.recipe.algorithm!r}: leave it out"
        )
    if job.ranges is not None and job.parts.travel is Travel.COUNTED:
        raise RequestError(f"no accountant can add learned ranges to the coins of {job.recipe.algorithm!r}")
    if job.report is not None and job.unit is not Unit.RECORD:
        raise RequestError(
            f"reports protect one record, but {job.recipe.algorithm!r} protects one client: leave report out"
        )
    if job.report is not None:
        for site in job.sites:
            job.report.check(job.most_releases(), job.target(site))


def check_sites(sites: Sequence[object]) -> None:
    """Refuses sites without a sound name, or with the same one."""
    for site in sites:
        if not is_site_name(site):
            raise RequestError(f"sites: {site!r} must be up to 63 letters, digits, dots, dashes, underscores")
    if not sites or len(set(sites)) != len(sites):
        raise RequestError(f"silos (sites) must be at least one name, and each only once, not {list(sites)}")


def check_record(feature_shape: Sequence[object], classes: Any) -> None:
    """Refuses what is not the shape of a record, and records that no message has room for."""
    lengths = [n for n in feature_shape if type(n) is int and n > 0]
    if not lengths or len(lengths) != len(feature_shape):
        raise RequestError("feature_shape must be the shape of one record's features, such as [64]")
    outputs = 1 if classes is None else count("classes", classes)
    if math.prod(lengths) > MOST_PARAMETERS or outputs > MOST_PARAMETERS:
        raise RequestError(
            f"feature_shape = {lengths}, classes = {classes}: a model of such records "
            f"has more parameters than the {MOST_PARAMETERS} that fit into one message"
        )


def check_least_records(asked: Any, sites: Sequence[str]) -> dict[str, int]:
    """The least number of records of each site, from one number for all or one for each; empty for None."""
    if not isinstance(asked, Mapping):
        least = {} if asked is None else dict.fromkeys(sites, count("min_records", asked))
    elif set(asked) != set(sites):
        raise RequestError(
            f"min_records names {', '.join(sorted(asked)) or 'nobody'}: give one number for each of "
            f"{', '.join(sites)}, or one for all"
        )
    else:
        least = {site: count(f"min_records.{site}", asked[site]) for site in sites}
    if sum(least.values()) > MOST_RECORDS:
        raise RequestError(f"min_records = {asked} is more than can be checked")
    return least


def _open_choices(job: Job) -> list[str]:
    """Settings that a simulation would choose by looking at all clients, or that have no default."""
    recipe, entry = job.recipe, algorithm_entry(job.recipe.algorithm)
    found = [name for name in ("model", "rounds") if getattr(recipe, name) is None]
    # Stages and their regularisation are chosen only where the step is.
    chosen = {"batch", "snapshot_probability"} & entry.settings
    settings = chosen - recipe.algorithm_settings.keys()
    if with_defaults(recipe).algorithm_settings.get("sampling") == "full":
        settings.discard("batch")
    if job.min_records is None and sizes_matter(recipe):
        found.append("min_records")
    return found + [f"algorithm.{name}" for name in sorted(settings)]


def sizes_matter(recipe: Recipe) -> bool:
    """Whether a job must state the least number of records of a site."""
    entry = algorithm_entry(recipe.algorithm)
    summed = recipe.trust == "sum" and not entry.client_coins
    return entry.shuffled or summed or _steps_need_sizes(recipe)


def _steps_need_sizes(recipe: Recipe) -> bool:
    """Whether steps are derived from the noise of the messages, and so from numbers of records.

    Where whole clients are protected, noise does not depend on how many records they have.
    """
    entry = algorithm_entry(recipe.algorithm)
    return "step" in entry.settings - recipe.algorithm_settings.keys() and not entry.client_coins
