"""Cellwright beside what people run today, on this machine: servers, and libraries without one. One row of measurements after the other.

Rivals answer the same requests from the same weights; that is checked before anything is timed. Each is tried in several configurations, and the best
of them is measured, in turns with Cellwright, only one of them running at a time. What is printed are medians over the rounds, the values of every
round, and ratios of medians beside their goals. A row, or a rival, that cannot run here or gives wrong answers is left out, with the reason, and the
rest goes on.
"""

import argparse
import datetime
import importlib
import json
import signal
import sys
import time
from pathlib import Path

# Name, module, what it is given, and what it is.
ROWS = {
    "servers-1024": ("row_servers", {"hidden": 1024}, "LSTM, h = x = 1024, token inputs over HTTP: mosec, LitServe, Triton"),
    "servers-256": ("row_servers", {"hidden": 256}, "the same with h = x = 256"),
    "offline": ("row_offline", {}, "LSTM, h = x = 1024: ONNX Runtime and PyTorch with all sequences at hand, by length, in batches of up to 512"),
    "single": ("row_single", {}, "LSTM, h = x = 1024, one request of 24 steps at a time: ONNX Runtime and PyTorch"),
    "seq2seq": ("row_seq2seq", {}, "encoder-decoder, h = 1024, vocabulary 30,000, greedy: PyTorch in batches of 64"),
    "trees": ("row_trees", {}, "binary TreeLSTM, h = 1024: PyTorch by levels and DyNet with autobatching"),
    "encoder": ("row_encoder", {}, "all-MiniLM-L6-v2, 5 to 128 tokens: ONNX Runtime and sentence-transformers in batches of 32"),
}


def options() -> argparse.Namespace:
    rows = "\n".join(f"  {name:14}{title}" for name, (_, _, title) in ROWS.items())
    arguments = argparse.ArgumentParser(
        prog="tests/peers/run", description=__doc__, epilog=f"rows:\n{rows}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("rows", nargs="*", metavar="ROW", help="which [default: all]")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--seconds", type=float, default=4, help="of each measurement; a fifth as long before it does not count [default: 4]")
    arguments.add_argument("--trial", type=float, default=2, help="seconds for which each configuration is tried beforehand [default: 2]")
    arguments.add_argument("--connections", type=int, default=64, help="of the load generator [default: 64]")
    paddings = ["best", "padded", "packed"]
    arguments.add_argument("--padding", choices=paddings, default="best", help="how mosec and LitServe make batches, in PyTorch [default: best]")
    arguments.add_argument("--amx", action="store_true", help="Cellwright's workers multiply by AMX in f32 too (`amx=true`)")
    arguments.add_argument("--json", action="store_true", help="print one JSON object a row instead of Markdown tables")
    arguments.add_argument("--binary", type=Path, help=argparse.SUPPRESS)
    arguments.add_argument("--replay", type=Path, help=argparse.SUPPRESS)
    arguments.add_argument("--triton", type=Path, help=argparse.SUPPRESS)
    arguments.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    said = arguments.parse_args()
    if unknown := [row for row in said.rows if row not in ROWS]:
        arguments.error(f"there is no row `{unknown[0]}`; the rows are: {', '.join(ROWS)}")
    return said


def main() -> None:
    said = options()
    # Not before the options are read: --help needs no package.
    from setting import Figures, Setting, processor

    work = said.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    setting = Setting(said.binary, said.replay, said.triton, work, said.rounds, said.seconds, said.trial, said.connections, said.padding, said.amx)
    machine = f"{processor()}, {setting.cores} cores used{', amx=true' if setting.amx else ''}"
    if not said.json:
        print(f"{machine}; {datetime.date.today()}; {said.rounds} rounds of {said.seconds:g} s; {said.connections} connections\n", flush=True)
    # Ends the servers that run, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failed = False
    for row in said.rows or ROWS:
        module, given, title = ROWS[row]
        figures = Figures(row, title)
        began = time.monotonic()
        try:
            measure = lambda: importlib.import_module(module).measure(setting, figures, **given)  # noqa: E731
            figures.attempt("the rest of this row", measure)
        finally:
            failed |= figures.failed
            took = time.monotonic() - began
            found = {"machine": machine, **figures.as_json(), "took_s": took}
            print(json.dumps(found) if said.json else f"{figures.as_markdown()}\n({took:.0f} s)\n", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
