"""The accountant's own tests compute every answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _without_stored_answers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TACIT_CACHE", "")
        yield
