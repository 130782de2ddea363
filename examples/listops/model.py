"""The binary TreeLSTM (Tai, Socher and Manning, 2015, section 3.2) in PyTorch, for many trees at once and for one.

`TreeLstm.forest` runs a batch of trees level by level, all nodes of one height together: the host does the same across
requests. `TreeLstm.one` evaluates a single tree node by node; it is the plain meaning of the model, and what the expected
outputs of the bundle are computed with.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from listops import VOCABULARY, Tree


@dataclass
class Level:
    """The nodes of one height. Rows count the vocabulary's leaves first, then the subtrees that still wait for a parent."""

    left: Tensor
    right: Tensor
    kept: Tensor
    """Rows that wait for a parent further up."""


@dataclass
class Forest:
    """A batch of trees, ready to be computed: nodes are numbered level by level."""

    levels: list[Level]
    values: Tensor
    """Of every node: the value of the list it closes, or -1."""
    roots: Tensor
    """Of every tree: its root."""


def plant(trees: list[Tree]) -> Forest:
    """Arranges trees by height."""
    sizes = np.array([len(tree.left) for tree in trees])
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    left, right, height, values = (
        np.concatenate([getattr(tree, field) for tree in trees]) for field in ("left", "right", "height", "values")
    )
    left, right = (np.where(child < 0, child, child + first) for child in (left, right))

    parent_height = np.full(len(left), np.iinfo(np.int64).max)
    for child in (left, right):
        parent_height[child[child >= 0]] = height[child >= 0]

    order = np.argsort(height, kind="stable")
    waiting = np.empty(0, np.int64)
    row = np.zeros(len(left), np.int64)
    levels = []
    for nodes in np.split(order, np.cumsum(np.bincount(height)[1:])[:-1]):
        level_height = height[nodes[0]]
        rows = [np.where(child[nodes] < 0, -1 - child[nodes], row[child[nodes]]) for child in (left, right)]
        # A root waits for nobody, and must not be carried to the last level.
        kept = waiting[(parent_height[waiting] > level_height) & (parent_height[waiting] < np.iinfo(np.int64).max)]
        levels.append(Level(*map(torch.from_numpy, (*rows, row[kept]))))
        waiting = np.concatenate([kept, nodes])
        row[waiting] = len(VOCABULARY) + np.arange(len(waiting))

    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    return Forest(levels, torch.from_numpy(values[order]), torch.from_numpy(position[np.cumsum(sizes) - 1]))


class TreeLstm(nn.Module):
    """Embedding → leaf cell → internal cells → a linear head on any node's `h`."""

    def __init__(self, hidden: int, embedding: int):
        super().__init__()
        self.hidden = hidden
        self.emb = nn.Embedding(len(VOCABULARY), embedding)
        self.leaf = nn.Linear(embedding, 3 * hidden)  # gates i, o, u
        self.node = nn.Linear(2 * hidden, 5 * hidden)  # of [h_left, h_right]; gates i, f_left, f_right, o, u
        self.out = nn.Linear(hidden, 10)
        nn.init.orthogonal_(self.node.weight)
        with torch.no_grad():  # forget gates begin open, or nothing reaches the root of a tall tree
            self.node.bias[hidden : 3 * hidden] = 1.0

    def leaves(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        i, o, u = self.leaf(self.emb(codes)).chunk(3, -1)
        c = i.sigmoid() * u.tanh()
        return o.sigmoid() * c.tanh(), c

    def internal(self, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        gates, u = self.node(torch.cat([left[0], right[0]], -1)).split([4 * self.hidden, self.hidden], -1)
        i, f_left, f_right, o = gates.sigmoid().chunk(4, -1)
        c = i * u.tanh() + f_left * left[1] + f_right * right[1]
        return o * c.tanh(), c

    def forest(self, forest: Forest) -> Tensor:
        """`h` of every node of the forest."""
        vocabulary = torch.cat(self.leaves(torch.arange(len(VOCABULARY))), 1)
        rows, computed = vocabulary, []
        for level in forest.levels:
            left, right = rows[level.left].chunk(2, 1), rows[level.right].chunk(2, 1)
            h, c = self.internal(left, right)
            computed.append(h)
            rows = torch.cat([vocabulary, rows[level.kept], torch.cat([h, c], 1)])
        return torch.cat(computed)

    def one(self, tree: Tree) -> Tensor:
        """The logits of one tree, computed node by node."""
        states: list[tuple[Tensor, Tensor]] = []

        def state(child: int) -> tuple[Tensor, Tensor]:
            return states[child] if child >= 0 else self.leaves(torch.tensor(-1 - child))

        for left, right in zip(tree.left, tree.right):
            states.append(self.internal(state(left), state(right)))
        return self.out(states[-1][0])


def accuracy(model: TreeLstm, trees: list[Tree]) -> float:
    """The part of the trees whose root gets the right label."""
    right = 0
    with torch.no_grad():
        for start in range(0, len(trees), 1000):
            forest = plant(trees[start : start + 1000])
            labels = model.out(model.forest(forest)[forest.roots]).argmax(1)
            right += (labels == forest.values[forest.roots]).sum().item()
    return right / len(trees)
