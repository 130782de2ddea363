"""Trains the digits model and writes the bundle's weights, sample requests and expected outputs.

    python3 train.py                 some seconds
    python3 train.py --choose        compares settings on the validation set

An LSTM reads an image from the top row to the bottom row; a linear head reads its last hidden state. Settings are chosen
by the loss on the validation set; the held-out set is looked at once, at the end.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from digits import SIDE, Digit, request, split

SAMPLES = 10


@dataclass(frozen=True)
class Settings:
    hidden: int = 64
    epochs: int = 120
    batch: int = 64
    rate: float = 1e-2
    warp: float = 0.05
    """How far a training image is turned, sheared, stretched and shifted: the deviation of each entry of its affine map."""
    noise: float = 0.05
    clip: float = 1.0
    seed: int = 0


CANDIDATES = [Settings(rate=rate, warp=warp) for rate in (5e-3, 1e-2) for warp in (0.0, 0.05, 0.1, 0.15)]


class DigitsModel(nn.Module):
    def __init__(self, hidden: int):
        super().__init__()
        self.lstm = nn.LSTM(SIDE, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [batch, 10] of images [batch, rows, columns]."""
        _, (hidden, _) = self.lstm(images)
        return self.head(hidden[0])


def tensors(digits: list[Digit]) -> tuple[Tensor, Tensor]:
    images = torch.tensor([digit.pixels for digit in digits]).view(-1, SIDE, SIDE)
    return images, torch.tensor([digit.label for digit in digits])


def disturbed(images: Tensor, settings: Settings) -> Tensor:
    """The images as other hands might have written them."""
    if settings.warp == 0:
        return images
    maps = torch.eye(2, 3) + settings.warp * torch.randn(len(images), 2, 3)
    grid = F.affine_grid(maps, [len(images), 1, SIDE, SIDE], align_corners=False)
    warped = F.grid_sample(images.unsqueeze(1), grid, align_corners=False).squeeze(1)
    return warped + settings.noise * torch.randn_like(warped)


def fit(settings: Settings, training: list[Digit]) -> DigitsModel:
    torch.manual_seed(settings.seed)
    images, labels = tensors(training)
    model = DigitsModel(settings.hidden)
    per_epoch = len(images) // settings.batch
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.rate, total_steps=settings.epochs * per_epoch, pct_start=0.1)
    for _ in range(settings.epochs):
        for batch in torch.randperm(len(images))[: per_epoch * settings.batch].split(settings.batch):
            loss = F.cross_entropy(model(disturbed(images[batch], settings)), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
            optimizer.step()
            schedule.step()
    return model


def score(model: DigitsModel, digits: list[Digit]) -> tuple[float, float]:
    """Accuracy and loss."""
    images, labels = tensors(digits)
    with torch.no_grad():
        logits = model(images)
    return (logits.argmax(1) == labels).float().mean().item(), F.cross_entropy(logits, labels).item()


def choose(parts: dict[str, list[Digit]]) -> None:
    for settings in CANDIDATES:
        accuracy, loss = score(fit(settings, parts["training"]), parts["validation"])
        print(f"validation {accuracy:.4f}, loss {loss:.4f}  {asdict(settings)}", flush=True)


def write_bundle(model: DigitsModel, digits: list[Digit], out: Path) -> None:
    """Writes the weights, and samples with the outputs that PyTorch gives for each alone."""
    out.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), out / "weights.safetensors")
    requests, answers = [], []
    for number, digit in enumerate(digits):
        identifier = f"digits-{number}"
        with torch.no_grad():
            logits = model(tensors([digit])[0])[0]
        outputs = [
            {"name": "logits", "datatype": "FP32", "shape": [10], "data": [float(str(x)) for x in logits.numpy()]},
            {"name": "label", "datatype": "INT64", "shape": [1], "data": [logits.argmax().item()]},
        ]
        requests.append(request(identifier, digit))
        answers.append({"id": identifier, "outputs": outputs})
    for name, lines in (("samples.jsonl", requests), ("expected.jsonl", answers)):
        (out / name).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, default=Path(__file__).parent, help="where to write; default: this bundle")
    arguments.add_argument("--seed", type=int, default=Settings.seed)
    arguments.add_argument("--threads", type=int, default=1, help="the matrices are small: more threads gain little")
    arguments.add_argument("--choose", action="store_true", help="compare settings on the validation set, and write nothing")
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)

    parts = split()
    if options.choose:
        choose(parts)
        return
    begun = time.monotonic()
    model = fit(replace(Settings(), seed=options.seed), parts["training"])
    one_of_each = [next(digit for digit in parts["held-out"] if digit.label == label) for label in range(SAMPLES)]
    write_bundle(model, one_of_each, options.out)
    print(f"trained on {len(parts['training'])} images in {time.monotonic() - begun:.0f} s")
    for part in ("validation", "held-out"):
        accuracy, loss = score(model, parts[part])
        print(f"{part}: {accuracy * len(parts[part]):.0f} of {len(parts[part])} right ({accuracy:.2%}), loss {loss:.4f}")


if __name__ == "__main__":
    main()
