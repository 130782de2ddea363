"""Trains the date model and writes the bundle's weights, sample requests and expected outputs.

    python3 train.py                 one to two minutes
    python3 train.py --choose        compares settings in short runs, on the validation set

An LSTM reads the characters from the last to the first, another writes the ISO date, each character fed back into the
next step; no attention. Texts of equal length train together, so nothing is padded. Settings, and the round whose weights
are kept, are chosen on the validation set; the held-out set is looked at once, at the end.
"""

import argparse
import copy
import json
import math
import time
import tomllib
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Iterable, Iterator

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from dates import ALPHABET, pairs, request
from heldout import HELD_OUT_SEED

TRAINING_SEED, VALIDATION_SEED, SAMPLES_SEED = 1, 2, 4
VALIDATION_SIZE = 6000
ROUNDS = 12
SAMPLES = 16

TARGET = "0123456789-"
END, GO = len(TARGET), len(TARGET) + 1  # GO is only ever an input
STEPS = len("2000-01-01") + 1
SOURCE_CODES = {character: code for code, character in enumerate(ALPHABET)}

Pair = tuple[str, str]


@dataclass(frozen=True)
class Settings:
    hidden: int = 128
    embedding: int = 32
    texts: int = 400_000
    batch: int = 64  # PyTorch's LSTM is several times slower at 128 on some CPUs
    rate: float = 6e-3
    warm_up_batches: int = 300
    clip: float = 1.0
    seed: int = 0


CANDIDATES = [Settings(texts=100_000, rate=rate, hidden=hidden) for hidden in (96, 128) for rate in (1.5e-3, 3e-3, 6e-3)]


class DateModel(nn.Module):
    def __init__(self, hidden: int, embedding: int):
        super().__init__()
        self.src_emb = nn.Embedding(len(ALPHABET), embedding)
        self.encoder = nn.LSTM(embedding, hidden)
        self.tgt_emb = nn.Embedding(len(TARGET) + 2, embedding)
        self.decoder = nn.LSTM(embedding, hidden)
        self.out = nn.Linear(hidden, len(TARGET) + 1)

    def taught(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits of every step, each given the true character before it. Both inputs are [steps, batch]."""
        _, state = self.encoder(self.src_emb(source))
        fed = torch.cat([torch.full_like(target[:1], GO), target[:-1]])
        return self.out(self.decoder(self.tgt_emb(fed), state)[0])

    def written(self, source: Tensor) -> Tensor:
        """What the model writes by itself: [STEPS, batch], each step fed the character it wrote before."""
        _, state = self.encoder(self.src_emb(source))
        fed, steps = torch.full_like(source[:1], GO), []
        for _ in range(STEPS):
            hidden, state = self.decoder(self.tgt_emb(fed), state)
            fed = self.out(hidden).argmax(-1)
            steps.append(fed)
        return torch.cat(steps)

    def translate(self, text: str) -> str:
        """One text to its date, up to the first end."""
        codes = self.written(codes_of([text])).squeeze(1).tolist()
        return "".join(TARGET[code] for code in codes[: codes.index(END) if END in codes else None])


def codes_of(texts: list[str]) -> Tensor:
    """Texts of equal length, lower-cased and reversed: [length, batch]."""
    return torch.tensor([[SOURCE_CODES[character] for character in reversed(text.lower())] for text in texts]).t().contiguous()


def targets_of(dates: list[str]) -> Tensor:
    return torch.tensor([[*map(TARGET.index, date), END] for date in dates]).t().contiguous()


def batches(examples: Iterable[Pair], size: int, leftovers: bool) -> Iterator[list[Pair]]:
    """Groups examples of equal length as they come."""
    waiting = defaultdict(list)
    for example in examples:
        group = waiting[len(example[0])]
        group.append(example)
        if len(group) == size:
            yield group.copy()
            group.clear()
    if leftovers:
        yield from filter(None, waiting.values())


def mistakes(model: DateModel, examples: list[Pair]) -> list[tuple[str, str]]:
    """The examples whose date is not written exactly."""
    wrong = []
    with torch.no_grad():
        for batch in batches(examples, 256, leftovers=True):
            texts, dates = zip(*batch)
            right = (model.written(codes_of(texts)) == targets_of(dates)).all(0).tolist()
            wrong += [example for example, ok in zip(batch, right) if not ok]
    return wrong


def fit(settings: Settings, validation: list[Pair]) -> tuple[DateModel, float]:
    """Trains a model and returns the best round's weights with their validation accuracy."""
    torch.manual_seed(settings.seed)
    model = DateModel(settings.hidden, settings.embedding)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.rate, betas=(0.9, 0.99))
    total = settings.texts // settings.batch
    per_round = math.ceil(total / ROUNDS)

    def scale(step: int) -> float:
        warm_up = min(1.0, (step + 1) / settings.warm_up_batches)
        return warm_up * (0.002 + 0.998 * 0.5 * (1 + math.cos(math.pi * min(1.0, step / total))))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, scale)
    stream = batches(pairs("training", TRAINING_SEED + settings.seed), settings.batch, leftovers=False)
    best, best_weights, begun = -1.0, None, time.monotonic()
    for number in range(1, ROUNDS + 1):
        for batch in islice(stream, per_round):
            texts, dates = zip(*batch)
            target = targets_of(dates)
            loss = F.cross_entropy(model.taught(codes_of(texts), target).flatten(0, 1), target.flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
            optimizer.step()
            schedule.step()
        score = 1 - len(mistakes(model, validation)) / len(validation)
        print(f"round {number}: loss {loss.item():.4f}, validation {score:.4f}, {time.monotonic() - begun:.0f} s", flush=True)
        if score >= best:
            best, best_weights = score, copy.deepcopy(model.state_dict())
    model.load_state_dict(best_weights)
    return model, best


def choose(validation: list[Pair]) -> None:
    for settings in CANDIDATES:
        _, score = fit(settings, validation)
        print(f"{score:.4f}  {asdict(settings)}", flush=True)


def write_bundle(model: DateModel, out: Path) -> None:
    """Writes the weights, and samples from the held-out set with the outputs that PyTorch gives."""
    out.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), out / "weights.safetensors")
    requests, answers = [], []
    for number, (text, _) in enumerate(islice(pairs("held-out", SAMPLES_SEED), SAMPLES)):
        identifier = f"dates-{number}"
        with torch.no_grad():
            output = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [model.translate(text)]}
        requests.append(request(identifier, text))
        answers.append({"id": identifier, "outputs": [output]})
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

    with (Path(__file__).parent / "model.toml").open("rb") as file:
        assert tomllib.load(file)["parameters"]["alphabet"] == ALPHABET, "model.toml and dates.py disagree about the alphabet"
    validation = list(islice(pairs("validation", VALIDATION_SEED), VALIDATION_SIZE))
    if options.choose:
        choose(validation)
        return
    model, validated = fit(replace(Settings(), seed=options.seed), validation)
    held_out = list(islice(pairs("held-out", HELD_OUT_SEED), 20_000))
    write_bundle(model, options.out)
    wrong = mistakes(model, held_out)
    print(f"validation: {validated:.2%} of {len(validation)} right")
    print(f"held-out: {len(held_out) - len(wrong)} of {len(held_out)} right ({1 - len(wrong) / len(held_out):.3%})")
    print(f"of these, what heldout.py writes: {2000 - len(mistakes(model, held_out[:2000]))} of 2000 right")
    for text, date in wrong[:10]:
        print(f"  wrong: {text} ({date}) read as {model.translate(text)}")


if __name__ == "__main__":
    main()
