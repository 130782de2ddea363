"""Writes the labelled held-out dates: `python3 heldout.py --out DIR`. Needs only the standard library.

`DIR/requests.jsonl` holds one inference request a line, `DIR/labels.jsonl` the string that its output `text` must be.
"""

import argparse
import json
from itertools import islice
from pathlib import Path

from dates import pairs, request

HELD_OUT_SEED = 3


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--count", type=int, default=2000)
    options = arguments.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    examples = list(islice(pairs("held-out", HELD_OUT_SEED), options.count))
    requests = "".join(json.dumps(request(f"held-out-{n}", text), ensure_ascii=False) + "\n" for n, (text, _) in enumerate(examples))
    labels = "".join(json.dumps(date) + "\n" for _, date in examples)
    (options.out / "requests.jsonl").write_text(requests, encoding="utf-8")
    (options.out / "labels.jsonl").write_text(labels, encoding="utf-8")


if __name__ == "__main__":
    main()
