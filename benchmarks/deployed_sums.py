"""What sums add to a deployed round: the same recipe with and without them, in turns, over FLARE on loopback.

Five silos of 12,000 MNIST records train Fed-SPA's network (d = 21,840) on batches of about 60. Prints the median
seconds per round. Run: python benchmarks/deployed_sums.py DATA_DIR [TURNS]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS = 20
COMMON = (
    "--local 5 --data mnist --model mnist-cnn --algorithm noisy-mb-sgd --epsilon 4 --batch 60 --clip-norm 1 "
    f"--step 1 --rounds {ROUNDS} --json"
)


def seconds(place: Path, data_dir: str, *more: str) -> list[float]:
    """Seconds of every round but the first, which also exchanges keys and warms up."""
    command = [sys.executable, "-m", "tacit", "deploy", *COMMON.split(), "--data-dir", data_dir, *more]
    subprocess.run([*command, "--out", str(place)], check=True, stdout=subprocess.DEVNULL)
    lines = (place / "server" / "state" / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line)["seconds"] for line in lines[1:]]


def main(data_dir: str, turns: int) -> None:
    """Run both in turns and print how they compare."""
    found: dict[str, list[float]] = {"messages": [], "sums": []}
    with tempfile.TemporaryDirectory() as place:
        for turn in range(turns):
            for name, more in (("messages", ()), ("sums", ("--set", "trust=sum"))):
                found[name] += seconds(Path(place) / f"{name}-{turn}", data_dir, *more)
                print(f"{name}, turn {turn + 1}: {statistics.median(found[name]):.3f} s per round", flush=True)
    ratio = statistics.median(found["sums"]) / statistics.median(found["messages"])
    print(f"a round with sums takes {ratio:.2f} times as long")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2)
