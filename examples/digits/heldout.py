"""Writes the labelled held-out images: `python3 heldout.py --out DIR`. Needs scikit-learn's data file, not its code.

`DIR/requests.jsonl` holds one inference request a line, `DIR/labels.jsonl` the value that its output `label` must be.
"""

import argparse
import json
import sys
from pathlib import Path

from digits import request, split


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--data", type=Path, help="digits.csv.gz; default: the installed scikit-learn's")
    options = arguments.parse_args()
    try:
        held_out = split(options.data)["held-out"]
    except FileNotFoundError as error:
        sys.exit(f"heldout.py: {error}")

    options.out.mkdir(parents=True, exist_ok=True)
    requests = "".join(json.dumps(request(f"held-out-{n}", digit)) + "\n" for n, digit in enumerate(held_out))
    labels = "".join(f"{digit.label}\n" for digit in held_out)
    (options.out / "requests.jsonl").write_text(requests, encoding="utf-8")
    (options.out / "labels.jsonl").write_text(labels, encoding="utf-8")


if __name__ == "__main__":
    main()
