"""A binary TreeLSTM on parse trees: PyTorch by levels and DyNet with autobatching, in processes of their own to which trees are simply given; and Cellwright
behind HTTP. Under load, each of the rivals takes whatever waits, up to its batch, at once."""

import asked
from library import ways
from ours import AT_MOST, at_half, half_loads, library, same, served
from setting import Figures, Setting

HIDDEN, VOCABULARY = 1024, 20_000
# As many trees at once.
BATCHES = (64, 256)


def measure(setting: Setting, figures: Figures) -> None:
    bundle = asked.trees_model(setting.work, HIDDEN, VOCABULARY)
    requests = asked.trees(VOCABULARY)
    figures.notes.append(asked.whose_shapes())
    ask = lambda tree: {"tokens": tree[0], "children": tree[1]}  # noqa: E731
    servers = served(setting, figures, {"": bundle}, requests, ask, tables=(True,))
    # Tried with all trees: of fewer, there would be no large batch for some of the processes.
    by_levels = {f"{how}, trees: {batch}": {"batch": batch, **way} for how, way in ways(setting.cores).items() for batch in BATCHES}
    # DyNet computes on one thread.
    autobatched = {how: way for how, way in by_levels.items() if way["threads"] == 1}
    found = [
        library(setting, figures, "torch", "torch_trees", bundle, requests, by_levels),
        library(setting, figures, "dyNET38", "dynet_trees", bundle, requests, autobatched),
    ]
    libraries = [each for each in found if each is not None]
    same(figures, servers, libraries)
    rates = half_loads(setting, figures, servers, libraries)
    compare(figures, list(servers), rates)


def compare(figures: Figures, servers: list[str], rates: dict[str, float]) -> None:
    for ours in servers:
        for rival, rate in rates.items():
            most = (figures.median(AT_MOST, who) for who in (ours, rival))
            figures.ratio(f"{ours}: requests/s at most, to those of {rival}", *most, "≥2.5")
            measure_ = at_half("p90", rival, rate)
            figures.ratio(f"{ours}: p90 at half of what {rival} does at most", figures.median(measure_, ours), figures.median(measure_, rival), "≤0.3")
