"""Runs an example's held-out set through the engine and compares every answer with its label.

    python tests/heldout.py examples/digits --binary target/release/cellwright --work DIR --output label --at-least 0.97 --may-lose bf16=0.005

The example's own `heldout.py` writes the requests and the labels. All requests are handed to one process at once, so that they batch with
one another. Ends with one line of figures; exit status 1 if fewer than the required share are right, if any request has no answer, or if at another
precision fewer are right than may be.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path


def read_lines(path: Path) -> list:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def answer(response: dict, name: str):
    """The one element of the response's output of that name."""
    if "error" in response:
        raise ValueError(f"request {response.get('id')} failed: {response['error']}")
    for output in response["outputs"]:
        if output["name"] == name:
            data = output["data"]
            while isinstance(data, list) and len(data) == 1:
                data = data[0]
            return data
    raise ValueError(f"the response to {response.get('id')} has no output `{name}`")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("example", type=Path)
    arguments.add_argument("--binary", type=Path, required=True)
    arguments.add_argument("--work", type=Path, required=True, help="folder for requests, labels and responses")
    arguments.add_argument("--output", required=True, help="name of the output that the label is about")
    arguments.add_argument("--at-least", type=float, required=True, help="share that must be right, 0 to 1")
    arguments.add_argument("--may-lose", nargs="*", default=[], metavar="PRECISION=SHARE", help="how much less of them may be right at that precision")
    options = arguments.parse_args()

    options.work.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, options.example / "heldout.py", "--out", options.work], check=True)
    requests, labels = read_lines(options.work / "requests.jsonl"), read_lines(options.work / "labels.jsonl")
    if not requests or len(requests) != len(labels):
        sys.exit(f"{len(requests)} requests, {len(labels)} labels: they must be equally many, and more than none")

    started = time.monotonic()
    right = count_right(options, requests, labels, [])
    seconds = time.monotonic() - started
    share = right / len(labels)
    figures = f"{options.example.name}: {right} of {len(labels)} right ({share:.2%}), {options.at_least:.2%} required; {seconds:.1f} s"
    failed = share < options.at_least
    for allowance in options.may_lose:
        precision, allowed = allowance.split("=")
        at_precision = count_right(options, requests, labels, ["--precision", precision])
        figures += f"; {at_precision} in {precision}"
        failed = failed or at_precision / len(labels) <= share - float(allowed)
    print(figures)
    sys.exit(failed)


def count_right(options: argparse.Namespace, requests: list, labels: list, more: list) -> int:
    """How many answers are their labels."""
    command = [options.binary, "run", options.example, "--input", options.work / "requests.jsonl", "--json", *more]
    with (options.work / "responses.jsonl").open("w", encoding="utf-8") as responses_file:
        status = subprocess.run(command, stdout=responses_file, check=False).returncode
    responses = read_lines(options.work / "responses.jsonl")
    if status != 0 or len(responses) != len(requests):
        sys.exit(f"{len(requests)} requests, {len(responses)} responses, exit status {status}")
    wrong = []
    for request, response, label in zip(requests, responses, labels, strict=True):
        if response.get("id") != request["id"]:
            sys.exit(f"the response to {request['id']} has the id {response.get('id')}")
        got = answer(response, options.output)
        if got != label:
            wrong.append(f"{request['id']}: {got!r} instead of {label!r}")
    print(*wrong[:10], sep="\n")
    return len(labels) - len(wrong)


if __name__ == "__main__":
    main()
