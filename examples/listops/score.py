"""Scores the bundle's weights on somebody else's expressions: `python3 score.py FILE`.

FILE has one `label<TAB>expression` a line (plain or gzip; a first line `label<TAB>expr` is passed over). Prints the score in
all, and separately for what the model was trained on and what is longer or nested deeper.
"""

import argparse
import gzip
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from listops import CODES, DEPTH_MAX, TOKENS, parse
from model import TreeLstm, plant


def read(path: Path) -> list[tuple[int, str]]:
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else path.open()
    with opened as file:
        rows = [line.rstrip("\n").split("\t") for line in file if line.strip()]
    return [(int(label), text) for label, text in rows if label != "label"]


def depth(text: str) -> int:
    """How deep the lists nest; 1 for a list of digits, 0 for a digit."""
    now = deepest = 0
    for token in text.split():
        now += token.startswith("[") - (token == "]")
        deepest = max(deepest, now)
    return deepest


def predict(model: TreeLstm, texts: list[str]) -> list[int]:
    """The label of each expression, one at a time only where it is a single leaf."""
    lists = [text for text in texts if len(text.split()) > 1]
    labels = {text: model.out(model.leaves(torch.tensor(CODES[text]))[0]).argmax().item() for text in texts if text in CODES}
    for start in range(0, len(lists), 500):
        chunk = lists[start : start + 500]
        forest = plant([parse(text) for text in chunk])
        labels |= zip(chunk, model.out(model.forest(forest)[forest.roots]).argmax(1).tolist())
    return [labels[text] for text in texts]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("file", type=Path)
    arguments.add_argument("--bundle", type=Path, default=Path(__file__).parent)
    options = arguments.parse_args()

    weights = load_file(options.bundle / "weights.safetensors")
    model = TreeLstm(hidden=weights["out.weight"].shape[1], embedding=weights["emb.weight"].shape[1])
    model.load_state_dict(weights)
    rows = read(options.file)
    if not rows:
        sys.exit(f"score.py: {options.file} holds no expression")
    otherwise = sum(parse(text).value != label for label, text in rows if text not in CODES)
    print(f"{otherwise} of {len(rows)} labels differ from the value that listops.py computes")

    with torch.no_grad():
        right = [prediction == label for prediction, (label, _) in zip(predict(model, [text for _, text in rows]), rows)]
    known = [depth(text) <= DEPTH_MAX and TOKENS[0] <= len(text.split()) <= TOKENS[1] for _, text in rows]
    short = [len(text.split()) < TOKENS[0] for _, text in rows]
    beyond = [not (is_known or is_short) for is_known, is_short in zip(known, short)]
    lengths = f"{TOKENS[0]} to {TOKENS[1]} tokens and {DEPTH_MAX} levels"
    for name, chosen in (("all", [True] * len(rows)), (lengths, known), ("shorter", short), ("longer or deeper", beyond)):
        hits = [hit for hit, is_in in zip(right, chosen) if is_in]
        if hits:
            print(f"{name}: {sum(hits)} of {len(hits)} right ({sum(hits) / len(hits):.2%})")


if __name__ == "__main__":
    main()
