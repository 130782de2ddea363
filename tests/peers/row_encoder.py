"""all-MiniLM-L6-v2 over token ids: ONNX Runtime and sentence-transformers with all sentences at hand, sorted by length, in padded batches of 32; and Cellwright
behind HTTP. Under load, each rival takes whatever waits, up to its batch, at once."""

import numpy as np

import asked
from library import ways
from ours import AT_MOST, at_half, half_loads, library, same, served
from setting import Figures, Setting

SENTENCES, BATCH = 1280, 32
# Ids of the vocabulary's words, with those of [CLS] and [SEP] around them.
WORDS, BEGIN, END = (1000, 30_000), 101, 102
PROGRAMS = (("onnxruntime", "onnx_encoder"), ("sentence-transformers", "torch_encoder"))
# By rival: of its most, and of its latency at half of that.
GOALS = {"onnxruntime": ("≥1.3", "≤0.3"), "sentence-transformers": ("≥1.5", "≤0.3")}


def sentences() -> list[np.ndarray]:
    random = np.random.default_rng(10)
    return [np.array([BEGIN, *random.integers(*WORDS, words), END], dtype=np.int64) for words in random.integers(3, 127, SENTENCES)]


def measure(setting: Setting, figures: Figures) -> None:
    bundle = asked.encoder_model(setting.work)
    requests = sentences()
    servers = served(setting, figures, {"": bundle}, requests, lambda ids: {"input_ids": ids[None]}, tables=(True,))
    # Tried with every fourth request.
    tried = {how: {"batch": BATCH, "part": 4, **way} for how, way in ways(setting.cores).items()}
    found = [library(setting, figures, package, program, bundle, requests, tried) for package, program in PROGRAMS]
    libraries = [each for each in found if each is not None]
    same(figures, servers, libraries)
    rates = half_loads(setting, figures, servers, libraries)
    for ours in servers:
        for rival, rate in rates.items():
            most, late = GOALS[rival.split()[0]]
            figures.ratio(f"{ours}: sentences/s at most, to those of {rival}", figures.median(AT_MOST, ours), figures.median(AT_MOST, rival), most)
            p90 = at_half("p90", rival, rate)
            figures.ratio(f"{ours}: p90 at half of what {rival} does at most", figures.median(p90, ours), figures.median(p90, rival), late)
