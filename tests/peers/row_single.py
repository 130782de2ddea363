"""One request of 24 steps at a time. A library is called in its own process; Cellwright is asked over HTTP, and as `cellwright run` through a pipe, in JSON."""

from dataclasses import replace

import numpy as np

import asked
from cellwright import Cellwright, InProcess, called, workers
from library import Library, quantiles
from server import FIRST, Asked, agree
from setting import Figures, Setting, in_turns, version

HIDDEN, VOCABULARY, STEPS = 1024, 10_000, 24
# Few, so that what does not count has asked all of them: a table then has their tokens, as one that has served for a while has.
REQUESTS = 16


def measure(setting: Setting, figures: Figures) -> None:
    bundle = asked.tokens_model(setting.work, HIDDEN, VOCABULARY)
    requests = list(np.random.default_rng(3).integers(0, VOCABULARY, (REQUESTS, STEPS), dtype=np.int64))
    file = setting.work / f"{figures.row}.json"
    asked.write(file, requests)
    found = []
    for way in (over_http, in_process):
        for table in (False, True):
            name = f"{called('f32', table)}, {'over HTTP' if way is over_http else 'in process'}"
            found.append(figures.attempt(name, lambda: way(setting, figures, bundle, requests, table, name)))
    for package, program in (("onnxruntime", "onnx_lstm"), ("torch", "torch_lstm")):
        found.append(figures.attempt(package, lambda: library(setting, figures, package, program, bundle, file)))
    contenders = [each for each in found if each is not None]
    agree(figures, {name: (answers, 1e-4) for name, _, answers in contenders})

    def measure_(name: str, latencies) -> None:
        seen = latencies(setting.seconds)
        for each in ("p50", "p90"):
            figures.add(f"{each} in ms", name, seen[each])

    in_turns(setting, figures, {name: (lambda name=name, latencies=latencies: measure_(name, latencies)) for name, latencies, _ in contenders})
    compare(figures)


def fastest(figures: Figures, name: str, ways: dict, seconds: float):
    """By its median latency; as a rate, of which the highest is the best."""
    return figures.choose(name, {how: (lambda latencies=latencies: 1e3 / latencies(seconds)["p50"]) for how, latencies in ways.items()})


def cellwright(setting: Setting, bundle, table: bool) -> dict:
    return {how: Cellwright(setting, bundle, lambda tokens: {"tokens": tokens}, each, "f32", table) for how, each in workers(setting).items()}


def over_http(setting: Setting, figures: Figures, bundle, requests: list, table: bool, name: str):
    made = {how: Asked(setting, server, requests, figures.row) for how, server in cellwright(setting, bundle, table).items()}

    def latencies(asked_: Asked, seconds: float) -> dict:
        with asked_.running() as running:
            return asked_.most(running, seconds, connections=1)

    ways = {how: (lambda seconds, each=each: latencies(each, seconds)) for how, each in made.items()}
    chosen = fastest(figures, name, ways, setting.trial)
    return chosen and (name, ways[chosen], made[chosen].answers)


def in_process(setting: Setting, figures: Figures, bundle, requests: list, table: bool, name: str):
    made = cellwright(setting, bundle, table)

    def latencies(server: Cellwright, seconds: float) -> dict:
        found: list[float] = []
        with InProcess(server) as process:
            while len(found) < 2 * REQUESTS or sum(found[2 * REQUESTS :]) < seconds:
                found.append(process.ask({"tokens": requests[len(found) % len(requests)]})[0])
        return quantiles(found[2 * REQUESTS :])

    def answers(server: Cellwright) -> list[np.ndarray]:
        with InProcess(server) as process:
            return [process.ask({"tokens": tokens})[1] for tokens in requests[:FIRST]]

    ways = {how: (lambda seconds, each=each: latencies(each, seconds)) for how, each in made.items()}
    chosen = fastest(figures, name, ways, setting.trial)
    return chosen and (name, ways[chosen], lambda: answers(made[chosen]))


def library(setting: Setting, figures: Figures, package: str, program: str, bundle, file):
    one = Library(f"{package} {version(package)}", program, bundle, file, threads=1)
    made = {f"threads: {threads}": replace(one, threads=threads) for threads in sorted({1, setting.cores})}
    chosen = fastest(figures, one.name, {how: each.single for how, each in made.items()}, setting.trial)
    return chosen and (one.name, made[chosen].single, lambda: made[chosen].answers(FIRST))


def compare(figures: Figures) -> None:
    rivals = {who for _, who in figures.values if not who.startswith("cellwright")}
    for where in ("in process", "over HTTP"):
        for ours, goal in (("cellwright f32, no table", "≤0.85"), ("cellwright f32", "≤0.6")):
            for rival in sorted(rivals):
                median = lambda who: figures.median("p50 in ms", who)  # noqa: E731
                goal_ = goal if rival.startswith("onnxruntime") else ""
                figures.ratio(f"{ours}, {where}: p50 to that of {rival}", median(f"{ours}, {where}"), median(rival), goal_)
