"""ListOps expressions: what they are, how they are drawn, how they become trees, and which of them are held out.

Shared by `train.py`, `score.py` and `heldout.py`, so that all of them mean the same thing. Needs only the standard library.

An expression is a digit or a list `[OP a b … ]` of two to five expressions; its value is one digit:

    [MAX …]  the largest          [MIN …]  the smallest
    [SM …]   the sum modulo 10    [MED …]  the median; of an even number the mean of the middle two, rounded down

As in Nangia and Bowman (2018), a list branches to the left, and its opening and closing tokens are leaves of their own:
`[MAX 2 9 ]` is the tree `((([MAX 2) 9) ])`.

An expression belongs to training, validation or the held-out set by a hash of its text, so the split depends on no
library, no random generator and no order of drawing, and no expression can be in two sets.
"""

import hashlib
import random
from dataclasses import dataclass
from typing import Iterator

OPERATORS = {
    "[MAX": max,
    "[MIN": min,
    "[MED": lambda values: median(values),
    "[SM": lambda values: sum(values) % 10,
}
CLOSE = "]"
VOCABULARY = [*"0123456789", *OPERATORS, CLOSE]
CODES = {token: code for code, token in enumerate(VOCABULARY)}

ARGUMENTS = (2, 5)
DEPTH_MAX = 5
NESTING = 0.25
"""The chance that an argument is a list again rather than a digit."""
TOKENS = (8, 60)
"""Shorter expressions are too few to be held out fairly; longer ones only slow training down."""

HELD_OUT_PERCENT = 8
VALIDATION_PERCENT = 4


def median(values: list[int]) -> int:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) // 2


def draw(rng: random.Random, depth: int = DEPTH_MAX) -> list[str]:
    """The tokens of one random list whose lists nest at most `depth` deep."""
    tokens = [rng.choice(list(OPERATORS))]
    for _ in range(rng.randint(*ARGUMENTS)):
        nested = depth > 1 and rng.random() < NESTING
        tokens += draw(rng, depth - 1) if nested else [str(rng.randrange(10))]
    return [*tokens, CLOSE]


def part(text: str) -> str:
    """Which set an expression belongs to: `held-out`, `validation` or `training`."""
    percent = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 100
    if percent < HELD_OUT_PERCENT:
        return "held-out"
    return "validation" if percent < HELD_OUT_PERCENT + VALIDATION_PERCENT else "training"


def expressions(wanted: str, seed: int) -> Iterator[str]:
    """Endless distinct expressions of one set, always the same ones for a seed."""
    rng = random.Random(seed)
    seen = set()
    while True:
        tokens = draw(rng)
        text = " ".join(tokens)
        if TOKENS[0] <= len(tokens) <= TOKENS[1] and text not in seen and part(text) == wanted:
            seen.add(text)
            yield text


@dataclass
class Tree:
    """A binary tree, children before parents, the root last.

    A child is an earlier node's index, or `-1 - code` for a leaf with that token. `values[n]` is the value of the list
    that node `n` closes, and -1 where it closes none.
    """

    left: list[int]
    right: list[int]
    height: list[int]
    values: list[int]

    @property
    def value(self) -> int:
        return self.values[-1]


def parse(text: str) -> Tree:
    """The tree of one list.

    Raises `ValueError` where the text is not one whole expression.
    """
    tree = Tree([], [], [], [])
    open_lists: list[tuple[str, int, list[int]]] = []  # operator, the list so far (a child), its arguments' values

    def join(left: int, right: int, value: int = -1) -> int:
        tree.left.append(left)
        tree.right.append(right)
        tree.height.append(1 + max(tree.height[child] if child >= 0 else 0 for child in (left, right)))
        tree.values.append(value)
        return len(tree.left) - 1

    tokens = text.split()
    for position, token in enumerate(tokens):
        if token not in CODES:
            raise ValueError(f"token {position} is {token!r}, which is not in the vocabulary")
        leaf = -1 - CODES[token]
        if token in OPERATORS:
            open_lists.append((token, leaf, []))
            continue
        if not open_lists:
            raise ValueError(f"token {position} ({token}) stands outside of every list")
        if token == CLOSE:
            operator, so_far, values = open_lists.pop()
            if not values:
                raise ValueError(f"the list that token {position} closes is empty")
            value = OPERATORS[operator](values)
            item = join(so_far, leaf, value)
            if not open_lists:
                if position + 1 != len(tokens):
                    raise ValueError(f"text follows the expression, from token {position + 1} on")
                return tree
        else:
            item, value = leaf, int(token)
        operator, so_far, values = open_lists.pop()
        open_lists.append((operator, join(so_far, item), [*values, value]))
    raise ValueError("the expression ends inside a list")


def request(identifier: str, text: str) -> dict:
    """An Open Inference Protocol v2 inference request."""
    tensor = {"name": "expression", "datatype": "BYTES", "shape": [1], "data": [text]}
    return {"id": identifier, "inputs": [tensor]}
