"""Options under the names that other tools give them: the error says what they are called here."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

CALLED_HERE = {
    "--batch-size": "--batch",
    "--dataset": "--data",
    "--epochs": "--rounds",
    "--learning-rate": "--step",
    "--lr": "--step",
    "--max-grad-norm": "--clip-norm",
    "--noise-multiplier": "--epsilon",  # from which the noise is derived
    "--num-clients": "--clients",
    "--num-rounds": "--rounds",
    "--strategy": "--algorithm",
    "--target-delta": "--delta",
    "--target-epsilon": "--epsilon",
}


class Commands(TyperGroup):
    """The commands. An option of Opacus, Flower or PyTorch is answered by ours, not by what is spelt like it."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            # Which class of click raises it depends on the version of typer.
            option = getattr(error, "option_name", None)
            if option is not None and hasattr(error, "possibilities"):
                here = CALLED_HERE.get(option) or _setting(option)
                error.possibilities = [here] if here else error.possibilities
            raise


def _setting(option: str) -> str | None:
    """How a setting of a recipe that has no option is given."""
    from tacit.engine.recipe import Recipe

    name = option.removeprefix("--").replace("-", "_")
    return f"--set {name}=VALUE" if name in Recipe.__dataclass_fields__ else None
