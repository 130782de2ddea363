"""What is asked: models with made-up weights, and requests whose sizes are those of real ones."""

import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "clients"))
import bundles  # noqa: E402

# Sentences of Europarl, in words: the logarithm of their length is about normal.
MU, SIGMA, LONGEST = 2.95, 0.68, 330
REQUESTS = 4096
TREES = 1024
CLASSES = 5
# A file of `split`, `leaves`, `depth` and `preorder` (B: a node and then its two children, L: a leaf), if somebody has put it there.
SHAPES = HERE.parents[2] / "shared" / "data" / "sst_tree_shapes.tsv.gz"
# A decoder takes this from a count at each step, of which its encoder put down as much for each token that it read.
STEP = 1 / 128


def sequences(vocabulary: int, count: int = REQUESTS) -> list[np.ndarray]:
    drawn = np.random.default_rng(7).lognormal(MU, SIGMA, count)
    random = np.random.default_rng(8)
    return [random.integers(0, vocabulary, length, dtype=np.int64) for length in np.clip(np.rint(drawn), 1, LONGEST).astype(int)]


def trees(vocabulary: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Tokens [n] and children [n − 1, 2]: a child below n is a leaf, any other n + an earlier inner node; the last is the root."""
    random = np.random.default_rng(9)
    found = []
    for preorder in shapes(random):
        children = inner_nodes(preorder)
        found.append((random.integers(0, vocabulary, len(children) + 1, dtype=np.int64), children))
    return found


def shapes(random: np.random.Generator) -> list[str]:
    """Those of the Stanford treebank where they are at hand; elsewhere trees of as many leaves, split at random."""
    if SHAPES.is_file():
        with gzip.open(SHAPES, "rt", encoding="utf-8") as lines:
            found = [fields[3] for line in lines if (fields := line.split()) and fields[0] != "split"]
        return [shape for shape in (found[each] for each in random.permutation(len(found))) if len(shape) > 1][:TREES]
    return [split(int(leaves), random) for leaves in np.clip(np.rint(random.normal(19.2, 9.2, TREES)), 2, 56)]


def whose_shapes() -> str:
    if SHAPES.is_file():
        return f"Trees have shapes of the Stanford treebank ({SHAPES.name}, beside the checkout)."
    return "Trees are split at random, into as many leaves as those of the Stanford treebank have."


def split(leaves: int, random: np.random.Generator) -> str:
    if leaves == 1:
        return "L"
    left = int(random.integers(1, leaves))
    return "B" + split(left, random) + split(leaves - left, random)


def inner_nodes(preorder: str) -> np.ndarray:
    """Read backwards, each node comes after its children, which lie on a stack, the left one on top."""
    leaves = preorder.count("L")
    stack, children, leaf = [], [], leaves
    for each in reversed(preorder):
        if each == "L":
            leaf -= 1
            stack.append(leaf)
        else:
            left, right = stack.pop(), stack.pop()
            children.append((left, right))
            stack.append(leaves + len(children) - 1)
    return np.array(children, dtype=np.int64).reshape(-1, 2)


def write(path: Path, requests: list) -> None:
    """For programs of their own, which read them with `read`."""
    plain = [[part.tolist() for part in each] if isinstance(each, tuple) else each.tolist() for each in requests]
    path.write_text(json.dumps(plain), encoding="utf-8")


def read(path: Path) -> list:
    plain = json.loads(path.read_text(encoding="utf-8"))
    arrays = lambda each: np.array(each, dtype=np.int64)  # noqa: E731
    return [tuple(map(arrays, each)) if isinstance(each[0], list) else arrays(each) for each in plain]


# ---- models ----


def once(folder: Path, make) -> Path:
    """`make` is given a folder to make; it has another place until it is whole, so that what is here is whole, too."""
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unfinished-") as aside:
        # Bundles are called as their folder is.
        make(Path(aside) / folder.name)
        (Path(aside) / folder.name).rename(folder)
    return folder


def tokens_model(work: Path, hidden: int, vocabulary: int) -> Path:
    return once(work / f"h{hidden}" / "tokens", lambda folder: bundles.tokens(folder.parent, hidden, vocabulary, hidden))


def trees_model(work: Path, hidden: int, vocabulary: int) -> Path:
    sample = {
        "inputs": [
            {"name": "tokens", "datatype": "INT64", "shape": [3], "data": [1, 2, 3]},
            {"name": "children", "datatype": "INT64", "shape": [2, 2], "data": [0, 1, 3, 2]},
        ]
    }
    weights = {"emb.weight": (vocabulary, hidden)} | bundles.linear("leaf", 3 * hidden, hidden)
    weights |= bundles.linear("node", 5 * hidden, 2 * hidden) | bundles.linear("head", CLASSES, hidden)
    parameters = {"mode": "arrays", "embedding": hidden, "hidden": hidden, "classes": CLASSES}
    parameters |= {"leaf_embedding": "emb.", "leaf": "leaf.", "node": "node.", "head": "head."}
    return once(work / f"trees{hidden}" / "trees", lambda folder: bundles.bundle(folder, "builtin:tree", parameters, weights, sample))


def seq2seq_model(work: Path, hidden: int, vocabulary: int) -> Path:
    """An encoder-decoder whose target is as long as its source, as translations are about: one unit of the state counts."""
    return once(work / f"seq2seq{hidden}" / "numbers", lambda folder: make_seq2seq(folder, hidden, vocabulary))


def make_seq2seq(folder: Path, hidden: int, vocabulary: int) -> None:
    random = np.random.default_rng(1)
    eos, go = vocabulary - 1, vocabulary - 2
    shapes_ = {"src.weight": (vocabulary, hidden), "tgt.weight": (vocabulary, hidden)}
    shapes_ |= bundles.lstm("encoder", hidden, hidden) | bundles.lstm("decoder", hidden, hidden) | bundles.linear("out", vocabulary, hidden)
    weights = {name: bundles.made_up(random, shape) for name, shape in shapes_.items()}
    for name, sign in (("encoder", 1), ("decoder", -1)):
        unit = slice(0, 4 * hidden, hidden)
        weights[f"{name}.weight_ih_l0"][unit] = weights[f"{name}.weight_hh_l0"][unit] = 0
        weights[f"{name}.bias_hh_l0"][unit] = 0
        weights[f"{name}.bias_ih_l0"][unit] = [30, 30, sign * np.arctanh(STEP), 30]
    weights["out.weight"][eos] = 0
    weights["out.weight"][eos, 0] = -80 / STEP
    weights["out.bias"][eos] = 40
    sample = {"inputs": [{"name": "source", "datatype": "INT64", "shape": [3], "data": [1, 2, 3]}]}
    parameters = {"mode": "ids", "cell": "lstm", "input": "source", "output": "target", "embedding": hidden, "hidden": hidden}
    parameters |= {"source_vocabulary": vocabulary, "target_vocabulary": vocabulary, "eos": eos, "go": go, "max_steps": LONGEST + 1}
    parameters |= {"source_embedding": "src.", "encoder": "encoder.", "target_embedding": "tgt.", "decoder": "decoder.", "head": "out."}
    bundles.bundle(folder, "builtin:seq2seq", parameters, weights, sample)


def encoder_model(work: Path) -> Path:
    """all-MiniLM-L6-v2, as the example makes it."""
    make = HERE.parents[1] / "examples" / "embeddings" / "make.py"
    return once(work / "encoder" / "minilm", lambda folder: subprocess.run([sys.executable, make, folder], check=True, stdout=subprocess.DEVNULL))


def at_precision(bundle: Path, precision: str) -> Path:
    """The same bundle with another precision; its files are the same ones."""
    return bundle if precision == "f32" else _with(bundle, precision, f'precision = "{precision}"\n', "")


def in_batches(bundle: Path, cells: tuple[str, ...], rows: int) -> Path:
    """The same bundle with batches of those cells of up to so many rows, whatever is found to be enough."""
    return _with(bundle, f"batches-{rows}", "", "".join(f"\n[cells.{cell}]\nbatch_max = {rows}\n" for cell in cells))


def _with(bundle: Path, how: str, before: str, behind: str) -> Path:
    def make(folder: Path) -> None:
        folder.mkdir()
        for file in bundle.iterdir():
            if file.name != "model.toml":
                os.link(file, folder / file.name)
        (folder / "model.toml").write_text(before + (bundle / "model.toml").read_text(encoding="utf-8") + behind, encoding="utf-8")

    return once(bundle.parent / how / bundle.name, make)
