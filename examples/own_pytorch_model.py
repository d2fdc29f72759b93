"""Train your own PyTorch model, then fine-tune it.

Any `torch.nn.Module` whose layers do not mix records can be trained privately. This tutorial trains a small
convolutional network over five clients, and then shows the usual way to a better model at the same epsilon:
start from weights that were trained on public data, and train only the last layer.
"""

# ## A network and its data
#
# Handwritten digits, 8 x 8 pixels. A few images are public; the others are dealt to five clients, except for
# those that test the result. Dividing pixels by 16 looks at no record, so it costs no privacy.

import torch
from sklearn.datasets import load_digits
from torch import nn

import tacit

images, labels = load_digits(return_X_y=True)
images = images.reshape(-1, 1, 8, 8) / 16
public, private, test = slice(0, 60), slice(60, 1200), slice(1200, None)
federation = tacit.Federation.from_arrays(
    images[private], labels[private], clients=[k % 5 for k in range(1140)], test=(images[test], labels[test])
)
print(federation)

# The module is plain PyTorch. `BatchNorm` would be refused, with a message that names the layer: it computes a
# record's output from the other records of its batch, so no bound on one record's influence exists. `GroupNorm`
# and `LayerNorm` are fine.


def network() -> nn.Sequential:
    """A convolution and two dense layers."""
    torch.manual_seed(0)
    features = nn.Conv2d(1, 8, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(72, 32), nn.Tanh()
    return nn.Sequential(*features, nn.Linear(32, 10))


# ## Private training
#
# `ModuleModel` makes a model of a module. The algorithm clips every record's gradient to norm 1 and compresses
# what is sent; `plan` derives the noise for the promise, or refuses with a reason; `simulate` trains. (For a
# start in two lines, with settings chosen for you, see [make_private](../fine-tuning.md).)


def trained(module: nn.Module, trainable: str = "all") -> tacit.Run:
    """The module after 40 private rounds at epsilon 2."""
    model = tacit.models.ModuleModel(module, trainable=trainable)
    natural = tacit.parse_compressor("natural")
    algorithm = tacit.soteriafl_gd(model, bound=tacit.ClipNorm(1.0), compressor=natural)
    promise = tacit.Target(epsilon=2, delta=1e-5)
    return tacit.simulate(tacit.plan(algorithm, federation, rounds=40, privacy=promise), evaluate_every=8)


whole = trained(network())
print(f"{whole.algorithm.work.model.dim} parameters, test accuracy {whole.last.test_metric:.3f}")
print(whole.guarantee.sentence())

# Noise is added to every parameter, so its total grows with their number; the signal does not. This is why a
# network that is trained from nothing is seldom better than a linear model at a small epsilon.

# ## Fine-tuning: public weights, private head
#
# First, the network is trained on the sixty public images, as usual in PyTorch. (In real life, these are
# weights that somebody has published.)

pixels = torch.tensor(images, dtype=torch.float32)
tuned = network()
optimiser = torch.optim.Adam(tuned.parameters(), lr=0.01, weight_decay=1e-3)
for _ in range(100):
    optimiser.zero_grad()
    nn.functional.cross_entropy(tuned(pixels[public]), torch.tensor(labels[public])).backward()
    optimiser.step()

# Then everything but the last layer is frozen: `trainable="head"`. What is frozen gets no noise and is not sent,
# and the promise lists it as public. `"bias"`, `"lora:8"` and names of layers work too. Training starts from the
# weights that the module has.

head = trained(tuned, "head")
print(f"{head.algorithm.work.model.dim} parameters, test accuracy {head.last.test_metric:.3f}")
print(f"before the private rounds: {head.history[0].test_metric:.3f}")

# ## Side by side

from matplotlib.figure import Figure  # noqa: E402

figure = Figure(figsize=(7, 3.2), layout="constrained")
axes = figure.subplots()
for name, run in {"all parameters": whole, "the last layer, public features": head}.items():
    axes.plot(run.history.frame["round"], run.history.frame["test_metric"], marker=".", label=name)
axes.set(xlabel="communication rounds", ylabel="test accuracy", title="epsilon 2, five clients")
axes.legend()
figure.savefig("fine_tuning.png", dpi=80)

# Both runs make the same promise to the records of the clients. (It does not cover the sixty public images.) How
# much the public weights help depends on the noise: at epsilon 4, with half of it, the whole network catches up.

# ## Use it
#
# `run.model` predicts. `run.save("runs/mine")` writes everything that is needed to use the run and to account
# for it.

print("predicted", head.model.predict(federation.test_features[:8]).tolist())
print("true     ", federation.test_targets[:8].tolist())
