"""What the rows that compare with libraries share: Cellwright behind HTTP in its best configuration, and libraries in theirs."""

from pathlib import Path

import asked
from cellwright import Cellwright, called, workers
from library import Library
from server import FIRST, Asked, agree, tried
from setting import CannotRun, Figures, Setting, in_turns, version

AT_MOST = "requests/s at most"
# Those who have all requests at hand are compared with a server that has as many as it can use.
CONNECTIONS = 128


def served(
    setting: Setting, figures: Figures, bundles: dict[str, Path], requests: list, ask, tables: tuple = (False, True), longer: int = 1
) -> dict[str, Asked]:
    """Cellwright in f32 without and with a table by token, each in its best configuration, of the bundles too; `longer` is how much longer than others it is tried for."""
    found = {}
    seconds = longer * setting.trial
    for table in tables:
        name = called("f32", table)
        server = lambda bundle, each: Asked(setting, Cellwright(setting, bundle, ask, each, "f32", table), requests, figures.row)  # noqa: E731
        ways = {how + also: (bundle, each) for also, bundle in bundles.items() for how, each in workers(setting).items()}
        made = figures.attempt(name, lambda: {how: server(*way) for how, way in ways.items()})
        chosen = made and figures.choose(name, {how: (lambda each=each: tried(each, seconds, CONNECTIONS)) for how, each in made.items()})
        if chosen is not None:
            found[name] = made[chosen]
    return found


def library(setting: Setting, figures: Figures, package: str, program: str, model: Path, requests: list, how: dict) -> Library | None:
    """A rival in the way in which it is fastest: `how` names ways, each with what differs in a `Library`."""
    file = setting.work / f"{figures.row}.json"
    asked.write(file, requests)
    try:
        name = f"{package} {version(package)}"
    except CannotRun as reason:
        figures.skipped[package] = str(reason)
        return None
    ways = {}
    for label, differs in how.items():
        differs = dict(differs)
        part = differs.pop("part", 1)
        ways[label] = (Library(name, program, model, file, **differs), part)
    chosen = figures.choose(name, {label: (lambda way=way: way[0].passed(way[1])) for label, way in ways.items()})
    return chosen and ways[chosen][0]


def same(figures: Figures, servers: dict[str, Asked], libraries: list[Library]) -> None:
    """Whose answers to the first requests are not those of Cellwright is out."""
    answers = {name: (server.answers, 1e-4) for name, server in servers.items()}
    agree(figures, answers | {each.name: ((lambda each=each: each.answers(FIRST)), 1e-4) for each in libraries})


def passes(setting: Setting, figures: Figures, servers: dict[str, Asked], libraries: list[Library]) -> dict:
    """What measures, of each of them, the most that it does."""

    def server(name: str, asked_: Asked) -> None:
        with asked_.running() as running:
            figures.add(AT_MOST, name, asked_.most(running, setting.seconds, CONNECTIONS)["rate"])

    found = {each.name: (lambda each=each: figures.add(AT_MOST, each.name, each.passed())) for each in libraries}
    return found | {name: (lambda name=name, each=each: server(name, each)) for name, each in servers.items()}


def half_loads(setting: Setting, figures: Figures, servers: dict[str, Asked], libraries: list[Library]) -> dict[str, float]:
    """Measures the most of each, in turns, and latencies where requests come at random, half as many as a library does at most. Gives these rates by library."""
    rates: dict[str, float] = {}

    def latencies(who: str, whose: str, seen: dict, rate: float) -> None:
        for each in ("p50", "p90"):
            figures.add(at_half(each, whose, rate), who, seen[each])

    def library_(each: Library) -> None:
        most = each.passed()
        figures.add(AT_MOST, each.name, most)
        # Half of what it did in the first round is what it, and Cellwright, are asked from then on.
        rate = rates.setdefault(each.name, most / 2)
        latencies(each.name, each.name, each.under(setting.seconds, rate), rate)

    def server_(name: str, each: Asked) -> None:
        with each.running() as running:
            figures.add(AT_MOST, name, each.most(running, setting.seconds, CONNECTIONS)["rate"])
            for whose, rate in rates.items():
                latencies(name, whose, each.under(running, setting.seconds, rate), rate)

    contenders = {each.name: (lambda each=each: library_(each)) for each in libraries}
    contenders |= {name: (lambda name=name, each=each: server_(name, each)) for name, each in servers.items()}
    in_turns(setting, figures, contenders)
    return rates


def at_half(quantile: str, whose: str, rate: float) -> str:
    return f"{quantile} in ms at {rate:.1f}/s, half of what {whose} does at most"
