"""What an object says about itself in a notebook or at Python's prompt."""

from __future__ import annotations

import html


class BriefRepr:
    """An object that is shown as a few lines of text, instead of all its parts and tensors.

    Dataclasses that use it say `repr=False`, or they would write their own.

    >>> class Answer(BriefRepr):
    ...     def brief(self):
    ...         return {"answer": "a < b"}
    >>> Answer()
    answer: a < b
    >>> Answer()._repr_html_()
    '<table><tr><th>answer</th><td>a &lt; b</td></tr></table>'
    """

    def brief(self) -> dict[str, str]:
        """The lines, by their headings."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return "\n".join(f"{heading}: {text}" for heading, text in self.brief().items())

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        rows = (
            f"<tr><th>{html.escape(heading)}</th><td>{html.escape(text)}</td></tr>"
            for heading, text in self.brief().items()
        )
        return f"<table>{''.join(rows)}</table>"
