#!/usr/bin/env python3
"""What PyTorch takes for an LSTM of 1024 over tokens on a GPU (cuDNN), to hold the worker's figures against: packed sequences of the lengths of sentences, all at
hand, in batches as they come and in batches whose lengths are alike, and steps of one length. Prints one JSON object; exit status 3: there is no PyTorch, or no GPU for it.

    torch_lstm.py [--lengths FILE] [--sequences N] [--device N]

FILE has one length a line; without it they are drawn as `cellwright-lab bench engine --lengths lognormal` draws them (mean 24, at most 330).
"""

import argparse
import json
import random
import sys
import time

HIDDEN, WORDS = 1024, 10_000


def lengths(path: str | None, count: int) -> list[int]:
    random.seed(1)
    if path is None:
        return [min(max(round(random.lognormvariate(2.95, 0.68)), 1), 330) for _ in range(count)]
    with open(path) as lines:
        known = [int(line) for line in lines if line.strip() and int(line) > 0]
    return [random.choice(known) for _ in range(count)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", metavar="FILE")
    parser.add_argument("--sequences", type=int, default=8192, metavar="N")
    parser.add_argument("--device", type=int, default=0, metavar="N")
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("torch_lstm.py: there is no PyTorch for this python3", file=sys.stderr)
        return 3
    if not torch.cuda.is_available():
        print("torch_lstm.py: this PyTorch sees no GPU", file=sys.stderr)
        return 3
    torch.manual_seed(1)
    device = torch.device("cuda", arguments.device)
    drawn = lengths(arguments.lengths, arguments.sequences)
    figures = {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version(), "gpu": torch.cuda.get_device_name(device), "tokens": sum(drawn)}

    def event_us(run, times: int) -> float:
        for _ in range(3):
            run()
        took = []
        for _ in range(times):
            begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
            begin.record()
            run()
            end.record()
            torch.cuda.synchronize(device)
            took.append(begin.elapsed_time(end) * 1e3)
        return sorted(took)[times // 2]

    with torch.no_grad():
        for kind, name in ((torch.bfloat16, "bf16"), (torch.float16, "f16")):
            lstm = torch.nn.LSTM(HIDDEN, HIDDEN).to(device, kind).eval()
            lstm.flatten_parameters()
            embedding = torch.nn.Embedding(WORDS, HIDDEN).to(device, kind)
            for rows in (64, 256, 512, 2048):
                x = torch.randn(64, rows, HIDDEN, device=device, dtype=kind)
                figures[f"{name}_step_{rows}_us"] = round(event_us(lambda: lstm(x), 11) / 64, 2)
            for order, how in ((sorted(drawn), "alike"), (drawn, "as_they_come")):
                for rows in (512, 2048):
                    batches = [sorted(order[at : at + rows], reverse=True) for at in range(0, len(order), rows)]
                    packed = [torch.nn.utils.rnn.pack_sequence([torch.randint(0, WORDS, (length,)) for length in batch]) for batch in batches]
                    held = [(one.data.to(device), one.batch_sizes) for one in packed]
                    best = float("inf")
                    for turn in range(5):
                        torch.cuda.synchronize(device)
                        began = time.perf_counter()
                        for tokens, sizes in held:
                            lstm(torch.nn.utils.rnn.PackedSequence(embedding(tokens), sizes))
                        torch.cuda.synchronize(device)
                        if turn > 0:
                            best = min(best, time.perf_counter() - began)
                    figures[f"{name}_{how}_{rows}_per_s"] = round(len(drawn) / best)
            h, weights = torch.randn(256, HIDDEN, device=device, dtype=kind), torch.randn(HIDDEN, 30_000, device=device, dtype=kind)
            figures[f"{name}_projection_256_us"] = round(event_us(lambda: (h @ weights).argmax(1), 51), 1)
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
