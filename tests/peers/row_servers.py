"""One LSTM over tokens behind HTTP: mosec, LitServe and Triton, and Cellwright at every precision."""

from pathlib import Path

import numpy as np

import asked
from cellwright import Cellwright, called, workers
from rivals import LitServe, Mosec, Triton
from server import Asked, agree, tried
from setting import Figures, Setting, in_turns

VOCABULARY = 10_000
# Precision, whether there may be a table by token, and the error that is allowed.
OURS = [("f32", True, 1e-4), ("f32", False, 1e-4), ("bf16", True, 2e-2), ("int8", True, 5e-2)]
AT_MOST, CLIENT = "requests/s at most", "share of the processor that the client took at most"


def ways(cores: int, padding: str) -> dict[str, tuple]:
    """Threads of PyTorch, processes that compute, and how sequences of a batch are made to fit."""
    divided = {"threads: 1": (1, 1)} if cores == 1 else {"threads: 1": (1, 1), f"threads: {cores}": (cores, 1), f"{cores} processes": (1, cores)}
    every = lambda how_: {f"{how}, {how_}": (*each, how_) for how, each in divided.items()}  # noqa: E731
    if padding != "best":
        return every(padding)
    return {**every("packed"), f"threads: {cores}, padded": (cores, 1, "padded")}


def measure(setting: Setting, figures: Figures, hidden: int) -> None:
    bundle = asked.tokens_model(setting.work, hidden, VOCABULARY)
    requests = asked.sequences(VOCABULARY)
    # With the error that is allowed.
    ours, rivals = [], []
    for precision, table, tolerance in OURS:
        made = {how: cellwright(setting, bundle, each, precision, table) for how, each in workers(setting).items()}
        ours.append((best(setting, figures, requests, made, called(precision, table)), tolerance))
    for kind in (Mosec, LitServe, Triton):
        # Triton's batches are of equal lengths, so there is nothing to make fit, and they are small: it takes longer to see how many it does.
        its = ways(setting.cores, "padded" if kind is Triton else setting.padding)
        made = {how: rival(setting, kind, bundle, *each) for how, each in its.items()}
        rivals.append((best(setting, figures, requests, made, kind.__name__, longer=3 if kind is Triton else 1), 1e-4))
    ours, rivals = ([(each, tolerance) for each, tolerance in those if each is not None] for those in (ours, rivals))
    # The most exact first: it is they whom the others are compared with.
    exact_first = sorted(ours + rivals, key=lambda each: each[1])
    agree(figures, {each.server.name: (each.answers, tolerance) for each, tolerance in exact_first})
    rounds(setting, figures, [each for each, _ in ours], [each for each, _ in rivals])
    compare(figures, hidden, [each.server.name for each, _ in rivals])


def cellwright(setting: Setting, bundle: Path, each: list[str], precision: str, table: bool):
    return lambda: Cellwright(setting, bundle, lambda tokens: {"tokens": tokens}, each, precision, table)


def rival(setting: Setting, kind, bundle: Path, *way):
    return lambda: kind(setting, bundle, *way)


def best(setting: Setting, figures: Figures, requests: list[np.ndarray], made: dict, name: str, longer: int = 1) -> Asked | None:
    """The server as it is fastest."""
    candidates = figures.attempt(name, lambda: {how: Asked(setting, make(), requests, figures.row) for how, make in made.items()})
    if candidates is None:
        return None
    name = next(iter(candidates.values())).server.name
    chosen = figures.choose(name, {how: (lambda each=each: tried(each, longer * setting.trial)) for how, each in candidates.items()})
    return chosen and candidates[chosen]


def rounds(setting: Setting, figures: Figures, ours: list[Asked], rivals: list[Asked]) -> None:
    rates: dict[str, float] = {}

    def measure_(name: str, each: Asked) -> None:
        with each.running() as running:
            most = each.most(running, setting.seconds)
            figures.add(AT_MOST, name, most["rate"])
            figures.add(CLIENT, name, most["client"])
            if each in rivals:
                # Half of what it did in the first round is what it, and Cellwright, are asked from then on.
                rate = rates.setdefault(name, most["rate"] / 2)
                latencies(figures, name, name, each.under(running, setting.seconds, rate), rate)
            elif "f32" in name:
                for whose, rate in rates.items():
                    latencies(figures, name, whose, each.under(running, setting.seconds, rate), rate)

    in_turns(setting, figures, {each.server.name: (lambda each=each: measure_(each.server.name, each)) for each in rivals + ours})


def latencies(figures: Figures, who: str, whose: str, seen: dict, rate: float) -> None:
    for each in ("p50", "p90"):
        figures.add(at_half(each, whose, rate), who, seen[each])


def at_half(quantile: str, whose: str, rate: float | None = None) -> str:
    return f"{quantile} in ms at {rate:.1f}/s, half of what {whose.split()[0]} does at most"


def compare(figures: Figures, hidden: int, rivals: list[str]) -> None:
    triton = [name for name in rivals if name.startswith("triton")]
    mosec = [name for name in rivals if name.startswith("mosec")]
    others = [name for name in rivals if name not in triton]
    most = lambda *names: figures.best(AT_MOST, list(names))  # noqa: E731
    if hidden >= 1024:
        goals = {"cellwright f32, no table": "≥5", "cellwright f32": "≥10", "cellwright bf16": "≥14", "cellwright int8": "≥20"}
        for ours, goal in goals.items():
            figures.ratio(f"{ours}: requests/s at most, to the better of mosec and LitServe", most(ours), most(*others), goal)
        figures.ratio("cellwright f32, no table: requests/s at most, in units of 900", most("cellwright f32, no table"), 900, "≥1")
    else:
        figures.ratio("cellwright f32: requests/s at most, to mosec's", most("cellwright f32"), most(*mosec), "≥6")
    for ours in ("cellwright f32, no table", "cellwright f32"):
        figures.ratio(f"{ours}: requests/s at most, to Triton's", most(ours), most(*triton), "≥15")
        for name in rivals:
            measure_ = next((each for each, who in figures.values if who == name and each.startswith("p90")), "")
            goal = "≤0.1" if name in triton else "≤0.2"
            figures.ratio(f"{ours}: p90 at half of what {name} does at most", figures.median(measure_, ours), figures.median(measure_, name), goal)
