"""What starts wait for, and that what is deferred works when it is used."""

from __future__ import annotations

import subprocess
import sys

SLOW = "('scipy.stats', 'scipy.signal', 'sklearn', 'pandas', 'matplotlib')"
SEARCHES = "('scipy.optimize', 'scipy.fft')"


def _run(code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_plan_waits_for_nothing_that_it_does_not_use() -> None:
    """Searches for noise come with the first plan. dp-accounting's own functions get the real modules."""
    told = _run(
        "import sys, tacit, tacit.engine.execute\n"
        f"print([name for name in {SEARCHES} if name in sys.modules])\n"
        "federation = tacit.load('digits', clients=3, unit_norm=True)\n"
        "algorithm = tacit.soteriafl_gd(tacit.build_model('softmax', federation))\n"
        "tacit.plan(algorithm, federation, rounds=3, privacy=tacit.Target(epsilon=8, delta=1e-5))\n"
        f"print([name for name in {SLOW} if name in sys.modules])\n"
        "import dp_accounting\n"
        "print(round(dp_accounting.get_epsilon_gaussian(2.0, 1e-5), 6))\n"
        "print(sys.modules['scipy.stats'].norm.cdf(0))\n"
    )
    assert told == ["[]", "[]", "1.993091", "0.5"], told


def test_modules_that_are_there_already_are_left_alone() -> None:
    told = _run(
        "import sys, scipy.stats, scipy.signal, tacit, dp_accounting\n"
        "print(sys.modules['scipy.stats'] is scipy.stats, type(scipy.stats).__name__)\n"
    )
    assert told == ["True", "module"]
