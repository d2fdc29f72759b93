"""Compare algorithms at equal privacy.

Two algorithms can only be compared fairly if they make the same promise. In tacit you fix the promise, and the
noise follows: each algorithm gets exactly as much as its own sampling, estimator and rounds need. This tutorial
compares four algorithms for medical records in ten hospitals, first at one epsilon, then at several.
"""

# ## The question
#
# `breast-cancer` comes with scikit-learn: 569 tumours, 30 measures each, benign or malignant. We deal the
# records to ten hospitals. The promise: nobody, not even the server that coordinates, can tell what any one
# record contained, up to epsilon = 2 at delta = 1e-5.

from pathlib import Path

import tacit

promise = {"epsilon": 2.0, "delta": 1e-5}
question = tacit.Recipe(data="breast-cancer", clients=10, rounds=40, evaluate_every=8, **promise)

# ## The comparison
#
# All algorithms get the same records, the same starting point and the same promise; each draws its own noise.
# Two seeds show how much of a difference is luck. (`workers=1` runs everything in this process. Without it, one
# process per core is used; a script then needs `if __name__ == "__main__":`.)

names = ["cdp-sgd", "soteriafl-sgd", "noisy-mb-sgd", "noisy-local-sgd"]
outcomes = tacit.compare(question, names, out=Path("comparison"), seeds=2, workers=1)

print(f"{'algorithm':16} {'epsilon':>8} {'noise':>6} {'kB sent':>8}   accuracy of each seed")
for outcome in outcomes:
    first = outcome.summaries[0]
    accuracies = "  ".join(f"{summary['test_metric']:.3f}" for summary in outcome.summaries)
    sent = first["uplink_bits_per_client"] / 8000
    noise = first["noise_multiplier"]
    print(f"{outcome.algorithm:16} {first['epsilon']:8.3f} {noise:6.1f} {sent:8.1f}   {accuracies}")

# The epsilons agree: that is what makes the rest comparable. The noise multipliers do not, because the
# algorithms draw different batches and release different things. With 114 test records, one record is 0.9
# points of accuracy, so differences of two or three points here can be luck: use more seeds before you prefer
# one algorithm to another.

# ## The curves
#
# Test accuracy against what a client has sent, for the first seed, starting with the eighth round: before it, all
# models are at their common start. (`tacit.report.curves.plot_histories` draws loss, utility and accuracy
# against rounds and bits, with a band for the seeds.)

from matplotlib.figure import Figure  # noqa: E402

figure = Figure(figsize=(7, 3.2), layout="constrained")
axes = figure.subplots()
for outcome in outcomes:
    rows = list(outcome.histories[0])[1:]
    sent = [row.uplink_bits_per_client / 8000 for row in rows]
    axes.plot(sent, [row.test_metric for row in rows], marker=".", label=outcome.algorithm)
axes.set(xlabel="kB sent by a client", ylabel="test accuracy", ylim=(0.85, 1))
axes.set(title="breast-cancer, ten hospitals, epsilon 2")
axes.legend()
figure.savefig("curves.png", dpi=80)

# ## Other epsilons
#
# How much accuracy does privacy cost? We repeat the comparison at two smaller epsilons, and without privacy. A
# baseline without noise (`mb-sgd`) is marked as not private wherever it is shown.

accuracy = {}
for epsilon in (0.25, 1.0):
    asked = question.with_settings({"epsilon": epsilon})
    for outcome in tacit.compare(asked, ["noisy-mb-sgd"], out=Path("comparison"), workers=1):
        accuracy[epsilon] = outcome.summaries[0]["test_metric"]
(baseline,) = tacit.compare(question, ["mb-sgd"], out=Path("comparison"), workers=1)

for epsilon, reached in accuracy.items():
    print(f"noisy-mb-sgd at epsilon {epsilon:4}: accuracy {reached:.3f}")
print(f"mb-sgd, not private:          accuracy {baseline.summaries[0]['test_metric']:.3f}")

# ## The same from the command line
#
# ```sh
# tacit compare --data breast-cancer --epsilon 2 --rounds 40 --seeds 2 \
#     --algorithm cdp-sgd,soteriafl-sgd,noisy-mb-sgd,noisy-local-sgd
# tacit compare --data breast-cancer --algorithm mb-sgd,noisy-mb-sgd --at epsilon=0.25,1,4
# ```
#
# It writes a page (`report.html`), a table and the figure, shows progress, and continues after an interruption.
# A search for the best step (`--grid`) looks at private records many times; the output says that no epsilon
# includes this. To choose settings without looking at records, use `tacit plan --choose`.
