"""An encoder-decoder, greedy: PyTorch in batches of 64, as requests come and sorted by length beforehand; and Cellwright behind HTTP."""

from dataclasses import replace

import asked
from library import ways
from ours import AT_MOST, library, passes, same, served
from setting import Figures, Setting, in_turns

HIDDEN, VOCABULARY, REQUESTS = 1024, 30_000, 512


def measure(setting: Setting, figures: Figures) -> None:
    bundle = asked.seq2seq_model(setting.work, HIDDEN, VOCABULARY)
    # Not the last two tokens: those end a target, and begin it.
    requests = asked.sequences(VOCABULARY - 2, REQUESTS)
    servers = served(setting, figures, {"": bundle}, requests, lambda source: {"source": source}, longer=2)
    # Tried with every other request.
    rival = library(setting, figures, "torch", "torch_seq2seq", bundle, requests, {how: {"part": 2, **way} for how, way in ways(setting.cores).items()})
    rivals = [] if rival is None else [replace(rival, name=f"{rival.name}, sorted"), replace(rival, name=f"{rival.name}, as they come", sort=False)]
    same(figures, servers, rivals)
    in_turns(setting, figures, passes(setting, figures, servers, rivals))
    for ours in servers:
        for each in rivals:
            figures.ratio(f"{ours}: requests/s at most, to those of {each.name}", figures.median(AT_MOST, ours), figures.median(AT_MOST, each.name), "≥10")
