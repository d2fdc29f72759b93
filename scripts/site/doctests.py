"""Shows the examples of docstrings as code: an extension of griffe, which reads the sources for mkdocstrings."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)(>>> .*(?:\n\1\S.*|\n\1 +\S.*)*)", re.M)
"""From a prompt to the next empty line."""


class Doctests(griffe.Extension):
    """Puts every example into a block of code."""

    def on_object(self, *, obj: griffe.Object, **others: Any) -> None:
        """Called for every object that has been read."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(r"\1```pycon\n\1\2\n\1```", obj.docstring.value)
