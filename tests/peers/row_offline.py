"""The LSTM where all sequences are at hand beforehand: ONNX Runtime and PyTorch have them in batches of up to 512, of lengths that differ by less than ten, so
that hardly anything is padding; and Cellwright behind HTTP, where they come one by one."""

import asked
from library import ways
from ours import AT_MOST, library, passes, same, served
from setting import Figures, Setting, in_turns

HIDDEN, VOCABULARY = 1024, 10_000
BATCH, BUCKET = 512, 10
# Cellwright's, beside what it finds: a batch that is found is as small as hardly costs anything, and here nobody waits for an answer.
OURS = 64


def measure(setting: Setting, figures: Figures) -> None:
    bundle = asked.tokens_model(setting.work, HIDDEN, VOCABULARY)
    requests = asked.sequences(VOCABULARY)
    bundles = {"": bundle, f", batches of {OURS}": asked.in_batches(bundle, ("layer0",), OURS)}
    servers = served(setting, figures, bundles, requests, lambda tokens: {"tokens": tokens})
    # Tried with every other request.
    padded = {how: {"batch": BATCH, "bucket": BUCKET, "part": 2, **way} for how, way in ways(setting.cores).items()}
    packed = {f"{how}, packed": {**way, "padding": "packed"} for how, way in padded.items()}
    # What is packed has no padding, however long the others of its batch are.
    packed |= {f"{how}, packed, without buckets": {**way, "padding": "packed", "bucket": None} for how, way in padded.items()}
    rivals = [("onnxruntime", "onnx_lstm", padded), ("torch", "torch_lstm", padded | packed)]
    found = [library(setting, figures, package, program, bundle, requests, how) for package, program, how in rivals]
    libraries = [each for each in found if each is not None]
    same(figures, servers, libraries)
    in_turns(setting, figures, passes(setting, figures, servers, libraries))
    for ours in servers:
        goal = "≥1.15" if "no table" in ours else ""
        for each in libraries:
            figures.ratio(f"{ours}: requests/s at most, to those of {each.name}", figures.median(AT_MOST, ours), figures.median(AT_MOST, each.name), goal)
