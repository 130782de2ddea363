"""Trains the ListOps TreeLSTM and writes the bundle's weights, sample requests and expected outputs.

    python3 train.py                 five to six minutes
    python3 train.py --choose        compares settings in short runs, on the validation set

Every closed list's value is a training target, not only the root's. Settings, and the epoch whose weights are kept, are
chosen on the validation set; the held-out set is looked at once, at the end.
"""

import argparse
import copy
import json
import math
import random
import time
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from heldout import HELD_OUT_SEED
from listops import Tree, expressions, parse, request
from model import TreeLstm, accuracy, plant

TRAINING_SEED, VALIDATION_SEED = 1, 2
VALIDATION_SIZE = 4000
SAMPLES = 12


@dataclass(frozen=True)
class Settings:
    hidden: int = 128
    embedding: int = 32
    expressions: int = 100_000
    epochs: int = 8
    batch: int = 128
    rate: float = 4e-3
    warm_up_steps: int = 100
    clip: float = 1.0
    seed: int = 0


CANDIDATES = [Settings(expressions=20_000, epochs=4, rate=rate, batch=batch) for rate in (1e-3, 2e-3, 4e-3) for batch in (128, 256)]


def read(part: str, seed: int, count: int) -> list[Tree]:
    return [parse(text) for text in islice(expressions(part, seed), count)]


def fit(settings: Settings, validation: list[Tree]) -> tuple[TreeLstm, float]:
    """Trains a model and returns the best epoch's weights with their validation accuracy."""
    torch.manual_seed(settings.seed)
    rng = random.Random(settings.seed)
    training = read("training", TRAINING_SEED, settings.expressions)
    model = TreeLstm(settings.hidden, settings.embedding)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.rate, betas=(0.9, 0.99))
    per_epoch = len(training) // settings.batch
    total = settings.epochs * per_epoch

    def scale(step: int) -> float:
        warm_up = min(1.0, (step + 1) / settings.warm_up_steps)
        return warm_up * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * step / total)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, scale)
    best, best_weights, begun = -1.0, None, time.monotonic()
    for epoch in range(1, settings.epochs + 1):
        rng.shuffle(training)
        for step in range(per_epoch):
            forest = plant(training[step * settings.batch : (step + 1) * settings.batch])
            closed = (forest.values >= 0).nonzero().squeeze(1)
            loss = F.cross_entropy(model.out(model.forest(forest)[closed]), forest.values[closed])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
            optimizer.step()
            schedule.step()
        score = accuracy(model, validation)
        print(f"epoch {epoch}: loss {loss.item():.4f}, validation {score:.4f}, {time.monotonic() - begun:.0f} s", flush=True)
        if score > best:
            best, best_weights = score, copy.deepcopy(model.state_dict())
    model.load_state_dict(best_weights)
    return model, best


def choose(validation: list[Tree]) -> None:
    for settings in CANDIDATES:
        _, score = fit(settings, validation)
        print(f"{score:.4f}  {asdict(settings)}", flush=True)


def write_bundle(model: TreeLstm, out: Path) -> None:
    """Writes the weights, and samples from the held-out set with the outputs that PyTorch gives."""
    out.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), out / "weights.safetensors")
    requests, answers = [], []
    for number, text in enumerate(islice(expressions("held-out", HELD_OUT_SEED), SAMPLES)):
        identifier = f"listops-{number}"
        with torch.no_grad():
            logits = model.one(parse(text))
        outputs = [
            {"name": "logits", "datatype": "FP32", "shape": [10], "data": [float(str(x)) for x in logits.numpy()]},
            {"name": "label", "datatype": "INT64", "shape": [1], "data": [logits.argmax().item()]},
        ]
        requests.append(request(identifier, text))
        answers.append({"id": identifier, "outputs": outputs})
    for name, lines in (("samples.jsonl", requests), ("expected.jsonl", answers)):
        (out / name).write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, default=Path(__file__).parent, help="where to write; default: this bundle")
    arguments.add_argument("--seed", type=int, default=Settings.seed)
    arguments.add_argument("--threads", type=int, default=1, help="the matrices are small: more threads gain little")
    arguments.add_argument("--choose", action="store_true", help="compare settings on the validation set, and write nothing")
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)

    validation = read("validation", VALIDATION_SEED, VALIDATION_SIZE)
    if options.choose:
        choose(validation)
        return
    model, validated = fit(replace(Settings(), seed=options.seed), validation)
    held_out = read("held-out", HELD_OUT_SEED, 5000)
    write_bundle(model, options.out)
    tokens = sum(len(tree.left) + 1 for tree in held_out) / len(held_out)
    print(f"held-out expressions have {tokens:.1f} tokens on average")
    print(f"validation: {validated:.2%} of {len(validation)} right")
    print(f"held-out: {accuracy(model, held_out):.2%} of {len(held_out)} right")
    print(f"of these, what heldout.py writes: {accuracy(model, held_out[:2000]):.2%} of 2000 right")


if __name__ == "__main__":
    main()
