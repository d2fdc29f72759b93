"""What an epsilon of another tool is worth: its configuration, in its own words, accounted for exactly.

>>> verdict = check_label({"mechanism": "LocalDpMod", "clipping_norm": 1.0, "sensitivity": 1.0, "epsilon": 1.0,
...                        "delta": 1e-5, "rounds": 10})
>>> verdict.holds, round(verdict.views[0].epsilon, 1)
(False, 6.0)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tacit.errors import RequestError, unknown_name
from tacit.privacy.labels.flare import exclude_vars, percentile_privacy, svt_privacy
from tacit.privacy.labels.flower import adaptive_clipping, fixed_clipping
from tacit.privacy.labels.flower_local import local_dp_mod
from tacit.privacy.labels.gaussian import gaussian
from tacit.privacy.labels.opacus import privacy_engine
from tacit.privacy.labels.verdict import Flaw, LabelVerdict, View

__all__ = ["MECHANISMS", "Flaw", "LabelVerdict", "View", "check_label", "settings_of"]

MECHANISMS: dict[str, Callable[..., LabelVerdict]] = {
    "DifferentialPrivacyServerSideFixedClipping": partial(fixed_clipping, "server"),
    "DifferentialPrivacyClientSideFixedClipping": partial(fixed_clipping, "client"),
    "DifferentialPrivacyServerSideAdaptiveClipping": partial(adaptive_clipping, "server"),
    "DifferentialPrivacyClientSideAdaptiveClipping": partial(adaptive_clipping, "client"),
    "LocalDpMod": local_dp_mod,
    "SVTPrivacy": svt_privacy,
    "PercentilePrivacy": percentile_privacy,
    "ExcludeVars": exclude_vars,
    "Opacus": privacy_engine,
    "gaussian": gaussian,
}
"""By the name that the tool gives it; `gaussian` is for any other code."""

_ALSO_CALLED = {"PrivacyEngine": "Opacus", "make_private": "Opacus"}


def settings_of(mechanism: str) -> dict[str, bool]:
    """The settings of a mechanism, and whether each is needed."""
    return {name: setting.default is setting.empty for name, setting in _parameters(mechanism).items()}


def _parameters(mechanism: str) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(MECHANISMS[mechanism]).parameters


def _known(name: str) -> str:
    """The mechanism that is meant."""
    meant = _ALSO_CALLED.get(name, name)
    if meant not in MECHANISMS:
        raise unknown_name("mechanism", name, MECHANISMS)
    return meant


def check_label(configuration: Mapping[str, Any]) -> LabelVerdict:
    """What a configuration gives: `mechanism` and its settings, under the tool's own names.

    Raises:
        RequestError: a setting is missing, unknown or out of range.
    """
    given = {str(name).replace("-", "_"): value for name, value in configuration.items()}
    named = given.pop("mechanism", None)
    if not isinstance(named, str):
        wrong = "is missing" if named is None else f"must be a name, not {named!r}"
        raise RequestError(f"mechanism {wrong}; it is one of {', '.join(MECHANISMS)}")
    mechanism = _known(named)
    settings = settings_of(mechanism)
    for name in given:
        if name not in settings:
            raise unknown_name(f"setting of {mechanism}", name, settings)
    for name, setting in _parameters(mechanism).items():
        if given.get(name) is True and "bool" not in str(setting.annotation):
            raise RequestError(f"{name} of {mechanism} needs a value")
    missing = [name for name, needed in settings.items() if needed and name not in given]
    if missing:
        raise RequestError(f"{mechanism} needs {', '.join(missing)}")
    try:
        return MECHANISMS[mechanism](**given)
    except (TypeError, AttributeError) as error:
        raise RequestError(f"a setting of {mechanism} has the wrong type: {error}") from error
