"""Writes the labelled held-out expressions: `python3 heldout.py --out DIR`. Needs only the standard library.

`DIR/requests.jsonl` holds one inference request a line, `DIR/labels.jsonl` the value that its output `label` must be.
"""

import argparse
import json
from itertools import islice
from pathlib import Path

from listops import expressions, parse, request

HELD_OUT_SEED = 3


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--count", type=int, default=2000)
    options = arguments.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    texts = list(islice(expressions("held-out", HELD_OUT_SEED), options.count))
    requests = "".join(json.dumps(request(f"held-out-{n}", text)) + "\n" for n, text in enumerate(texts))
    labels = "".join(f"{parse(text).value}\n" for text in texts)
    (options.out / "requests.jsonl").write_text(requests, encoding="utf-8")
    (options.out / "labels.jsonl").write_text(labels, encoding="utf-8")


if __name__ == "__main__":
    main()
