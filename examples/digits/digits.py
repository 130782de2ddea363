"""The handwritten digits and which of them are held out.

Shared by `train.py` and `heldout.py`, so that both mean the same thing. Needs the standard library and one data file:
scikit-learn ships the digits as `digits.csv.gz`, which is read here without importing scikit-learn.

1,797 images of 8 rows of 8 pixels, 0 to 16. The split keeps the classes in proportion and goes by a hash of the image, so
it depends on no library and no random generator: of each class 20 % are held out, 10 % validate, 70 % train.
"""

import gzip
import hashlib
import importlib.util
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

SIDE = 8
LEVELS = 16
HELD_OUT_PERCENT = 20
VALIDATION_PERCENT = 10


@dataclass(frozen=True)
class Digit:
    pixels: tuple[float, ...]
    """Row by row, 0 to 1."""
    label: int


def data_file() -> Path:
    """Where the installed scikit-learn keeps the digits.

    Raises `FileNotFoundError` where it is not installed.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise FileNotFoundError("scikit-learn, which ships the digits, is not installed: pip install scikit-learn, or give --data digits.csv.gz")
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"


def split(path: Path | None = None) -> dict[str, list[Digit]]:
    """All digits as `training`, `validation` and `held-out`."""
    classes = defaultdict(list)
    with gzip.open(path or data_file(), "rt") as file:
        for line in file:
            *pixels, label = (int(float(field)) for field in line.split(","))
            classes[label].append(Digit(tuple(pixel / LEVELS for pixel in pixels), label))

    parts = {"training": [], "validation": [], "held-out": []}
    for label in sorted(classes):
        digits = sorted(classes[label], key=lambda digit: hashlib.sha256(repr(digit.pixels).encode()).digest())
        held_out = round(len(digits) * HELD_OUT_PERCENT / 100)
        validation = held_out + round(len(digits) * VALIDATION_PERCENT / 100)
        parts["held-out"] += digits[:held_out]
        parts["validation"] += digits[held_out:validation]
        parts["training"] += digits[validation:]
    return parts


def request(identifier: str, digit: Digit) -> dict:
    """An Open Inference Protocol v2 inference request."""
    return {"id": identifier, "inputs": [{"name": "image", "datatype": "FP32", "shape": [SIDE, SIDE], "data": list(digit.pixels)}]}
