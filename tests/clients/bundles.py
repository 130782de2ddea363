"""Small models with made-up weights, for what the examples do not show: several inputs, integers both ways, streams of numbers.

    python bundles.py FOLDER --hidden 16 --length 1      makes FOLDER/rows, an LSTM over rows, for benchmarks
"""

import argparse
import json
from pathlib import Path

import numpy as np

EMBEDDING, HIDDEN, VOCABULARY, CLASSES = 4, 8, 10, 3
MAX_STEPS = 6


def trees(folder: Path) -> Path:
    """A TreeLSTM with two inputs, `tokens` INT64 [n] and `children` INT64 [n − 1, 2], and outputs `logits` FP32 [3] and `label` INT64 [1]."""
    sample = {
        "inputs": [
            {"name": "tokens", "datatype": "INT64", "shape": [3], "data": [1, 2, 3]},
            {"name": "children", "datatype": "INT64", "shape": [2, 2], "data": [0, 1, 3, 2]},
        ]
    }
    weights = {"emb.weight": (VOCABULARY, EMBEDDING)}
    weights |= linear("leaf", 3 * HIDDEN, EMBEDDING) | linear("node", 5 * HIDDEN, 2 * HIDDEN) | linear("head", CLASSES, HIDDEN)
    parameters = {
        "mode": "arrays",
        "embedding": EMBEDDING,
        "hidden": HIDDEN,
        "classes": CLASSES,
        "leaf_embedding": "emb.",
        "leaf": "leaf.",
        "node": "node.",
        "head": "head.",
    }
    return bundle(folder / "trees", "builtin:tree", parameters, weights, sample)


def numbers(folder: Path) -> Path:
    """An encoder-decoder over ids: `source` INT64 [T] to `target` INT64 [-1], streamed, at most `MAX_STEPS` of them."""
    sample = {"inputs": [{"name": "source", "datatype": "INT64", "shape": [3], "data": [1, 2, 3]}]}
    weights = {"src.weight": (VOCABULARY, EMBEDDING), "tgt.weight": (VOCABULARY, EMBEDDING)}
    weights |= lstm("encoder") | lstm("decoder") | linear("out", VOCABULARY, HIDDEN)
    parameters = {
        "mode": "ids",
        "cell": "lstm",
        "input": "source",
        "output": "target",
        "source_vocabulary": VOCABULARY,
        "target_vocabulary": VOCABULARY,
        "embedding": EMBEDDING,
        "hidden": HIDDEN,
        "source_embedding": "src.",
        "encoder": "encoder.",
        "target_embedding": "tgt.",
        "decoder": "decoder.",
        "head": "out.",
        "eos": VOCABULARY - 1,
        "go": VOCABULARY - 2,
        "max_steps": MAX_STEPS,
    }
    return bundle(folder / "numbers", "builtin:seq2seq", parameters, weights, sample)


def tokens(folder: Path, hidden: int, vocabulary: int, embedding: int, seed: int = 0) -> Path:
    """An LSTM over token ids, `tokens` INT64 [T] to `hidden` FP32: the plainest model of a size."""
    sample = {"inputs": [{"name": "tokens", "datatype": "INT64", "shape": [3], "data": [1, 2, 3]}]}
    weights = {"embedding.weight": (vocabulary, embedding)} | lstm("lstm", embedding, hidden)
    parameters = {
        "cell": "lstm",
        "input": "tokens",
        "vocabulary": vocabulary,
        "embedding": embedding,
        "embedding_weights": "embedding.",
        "hidden": hidden,
        "output": "last",
        "weights": "lstm.",
    }
    return bundle(folder / "tokens", "builtin:chain", parameters, weights, sample, seed)


def rows(folder: Path, hidden: int, length: int, seed: int = 0) -> Path:
    """An LSTM over rows as wide as itself, `x` FP32 [T, hidden] to `hidden` FP32 [hidden]; its sample has `length` of them."""
    values = np.random.default_rng(seed).standard_normal(length * hidden, dtype=np.float32)
    sample = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [length, hidden], "data": values.tolist()}]}
    parameters = {"cell": "lstm", "input": "x", "features": hidden, "hidden": hidden, "output": "last", "weights": "lstm."}
    return bundle(folder / "rows", "builtin:chain", parameters, lstm("lstm", hidden, hidden), sample, seed)


ENCODER = {"hidden": 8, "intermediate": 16, "heads": 2, "layers": 2, "positions": 32}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "quick", "brown", "fox", "##es", "jump", "##s", "."]


def encoder(folder: Path) -> Path:
    """A BERT encoder of two layers that answers `/v1/embeddings`: `text` BYTES [n] to `embedding` FP32 [n, 8]."""
    hidden, wide = ENCODER["hidden"], ENCODER["intermediate"]
    weights = {"embeddings.word_embeddings.weight": (len(WORDS), hidden)}
    weights |= {"embeddings.position_embeddings.weight": (ENCODER["positions"], hidden), "embeddings.token_type_embeddings.weight": (2, hidden)}
    weights |= {"embeddings.LayerNorm.weight": (hidden,), "embeddings.LayerNorm.bias": (hidden,)}
    for layer in range(ENCODER["layers"]):
        name = f"encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            weights |= linear(f"{name}.attention.self.{part}", hidden, hidden)
        weights |= linear(f"{name}.attention.output.dense", hidden, hidden)
        weights |= linear(f"{name}.intermediate.dense", wide, hidden) | linear(f"{name}.output.dense", hidden, wide)
        for part in ("attention.output", "output"):
            weights |= {f"{name}.{part}.LayerNorm.weight": (hidden,), f"{name}.{part}.LayerNorm.bias": (hidden,)}
    sample = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["the quick brown foxes"]}]}
    made = bundle(folder / "encoder", "builtin:encoder", {"normalize": True}, weights, sample)
    config = {
        "model_type": "bert",
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_attention_heads": ENCODER["heads"],
        "num_hidden_layers": ENCODER["layers"],
        "max_position_embeddings": ENCODER["positions"],
    }
    (made / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (made / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    with (made / "model.toml").open("a", encoding="utf-8") as file:
        file.write("\n[embeddings]\n")
    return made


def made_up(random: np.random.Generator, shape: tuple) -> np.ndarray:
    return random.standard_normal(shape, dtype=np.float32) / np.sqrt(shape[-1], dtype=np.float32)


def linear(name: str, outputs: int, inputs: int) -> dict:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def lstm(name: str, inputs: int = EMBEDDING, hidden: int = HIDDEN) -> dict:
    gates = 4 * hidden
    return {
        f"{name}.weight_ih_l0": (gates, inputs),
        f"{name}.weight_hh_l0": (gates, hidden),
        f"{name}.bias_ih_l0": (gates,),
        f"{name}.bias_hh_l0": (gates,),
    }


def bundle(folder: Path, plugin: str, parameters: dict, weights: dict, sample: dict, seed: int = 0) -> Path:
    """A bundle in a new folder. Weights are arrays, or shapes of what is made up."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    arrays = {name: made_up(random, each) if isinstance(each, tuple) else each for name, each in weights.items()}
    write_safetensors(folder / "weights.safetensors", arrays)
    (folder / "samples.jsonl").write_text(json.dumps(sample) + "\n", encoding="utf-8")
    lines = [f'name = "{folder.name}"', f'plugin = "{plugin}"', 'weights = "weights.safetensors"', "", "[parameters]"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in parameters.items()]
    lines += ["", "[samples]", 'requests = "samples.jsonl"', ""]
    (folder / "model.toml").write_text("\n".join(lines), encoding="utf-8")
    return folder


def write_safetensors(path: Path, arrays: dict) -> None:
    """The format's own layout: a length, a JSON header, the bytes."""
    header, offset = {}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little"))
        file.write(head)
        for array in arrays.values():
            file.write(array.astype("<f4").tobytes())


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("folder", type=Path)
    asked.add_argument("--hidden", type=int, required=True)
    asked.add_argument("--length", type=int, default=1)
    said = asked.parse_args()
    print(rows(said.folder, said.hidden, said.length))
