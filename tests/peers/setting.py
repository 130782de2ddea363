"""What a measurement is given, and where it puts its figures. Nothing here starts, sends or computes anything."""

import importlib.metadata
import os
import platform
import statistics
import sys
import textwrap
import traceback
from dataclasses import dataclass, field
from pathlib import Path


class CannotRun(Exception):
    """Why something cannot be measured on this machine. The rest goes on."""


@dataclass(frozen=True)
class Setting:
    binary: Path
    replay: Path
    triton: Path | None
    work: Path
    rounds: int
    seconds: float
    """Of each measurement; a fifth as long before it does not count."""
    trial: float
    """Seconds that a configuration is tried for, before the best of them is measured."""
    connections: int
    padding: str
    """How batches of rival servers are made: `padded`, `packed`, or the `best` of the two."""
    amx: bool
    """Whether Cellwright's workers multiply by AMX in f32 too."""

    @property
    def cores(self) -> int:
        return len(os.sched_getaffinity(0))


@dataclass
class Figures:
    """Of one row: every value of every round, what was tried beforehand, and ratios of medians beside their goals."""

    row: str
    title: str
    values: dict = field(default_factory=dict)
    tried: dict = field(default_factory=dict)
    skipped: dict = field(default_factory=dict)
    ratios: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    """What else one has to know of what was asked."""
    failed: bool = False
    """Whether somebody failed otherwise than by not running here: by wrong answers, above all."""

    def add(self, measure: str, who: str, value: float) -> None:
        self.values.setdefault((measure, who), []).append(value)
        self._say(f"{who}: {number(value)} {measure}")

    def _say(self, what: str) -> None:
        print(f"{self.row}: {what}", file=sys.stderr, flush=True)

    def median(self, measure: str, who: str) -> float | None:
        found = self.values.get((measure, who))
        return statistics.median(found) if found else None

    def best(self, measure: str, whose: list[str]) -> float | None:
        return max((found for who in whose if (found := self.median(measure, who)) is not None), default=None)

    def ratio(self, what: str, of: float | None, to: float | None, goal: str) -> None:
        """`goal` begins with `≥` or `≤`, or is empty. Where one of the two is missing, there is no ratio."""
        if of is None or not to:
            return
        value = of / to
        met = None if not goal else value >= float(goal[1:]) if goal[0] == "≥" else value <= float(goal[1:])
        self.ratios.append({"what": what, "ratio": value, "goal": goal, "met": met})

    def attempt(self, who: str, what):
        """What `what()` gives. Where it fails, whatever the fault, None: that contender is out of this row, with the reason, and the others go on."""
        if who in self.skipped:
            return None
        try:
            return what()
        except Exception as error:
            self.skipped[who] = self._why(error)
            self._say(f"without {who}: {self.skipped[who]}")
            return None

    def _why(self, error: Exception) -> str:
        if isinstance(error, CannotRun):
            return str(error)
        self.failed = True
        said = textwrap.shorten(str(error), 300)
        if isinstance(error, AssertionError):
            return f"answers differ: {said}"
        traceback.print_exception(error)
        return f"{type(error).__name__}: {said}"

    def choose(self, who: str, candidates: dict):
        """Tries every candidate (a label and what gives a rate) and returns the label of the best; None, and why, if none of them runs."""
        rates, reasons = {}, []
        for label, rate in candidates.items():
            try:
                rates[label] = rate()
                self._say(f"tried {who}, {label}: {number(rates[label])}/s")
            except Exception as error:  # As in `attempt`.
                reasons.append(f"{label}: {self._why(error)}")
        if len(candidates) > 1 or reasons:
            self.tried[who] = {**rates, **{reason: None for reason in reasons}}
        if not rates:
            self.skipped[who] = "no configuration of it runs"
            return None
        return max(rates, key=rates.get)

    def as_json(self) -> dict:
        values = [{"measure": measure, "who": who, "median": statistics.median(rounds), "rounds": rounds} for (measure, who), rounds in self.values.items()]
        plain = {each: getattr(self, each) for each in ("row", "title", "ratios", "tried", "skipped", "notes")}
        return {**plain, "values": values}

    def as_markdown(self) -> str:
        lines = [f"### {self.row}: {self.title}", "", "| | | median | each round |", "|---|---|---|---|"]
        for (measure, who), rounds in self.values.items():
            lines.append(f"| {measure} | {who} | {number(statistics.median(rounds))} | {', '.join(number(each) for each in rounds)} |")
        if self.ratios:
            lines += ["", "| ratio | | goal | |", "|---|---|---|---|"]
        for each in self.ratios:
            met = {True: "met", False: "not met", None: ""}[each["met"]]
            lines.append(f"| {each['what']} | {each['ratio']:.2f} | {each['goal']} | {met} |")
        for who, rates in self.tried.items():
            said = "; ".join(label if rate is None else f"{label} {number(rate)}/s" for label, rate in rates.items())
            lines += ["", f"Tried of {who}: {said}."]
        lines += [line for who, why in self.skipped.items() for line in ("", f"Without {who}: {why}.")]
        lines += [line for note in self.notes for line in ("", note)]
        return "\n".join(lines) + "\n"


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def version(package: str) -> str:
    """The version of a package that is here."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError as error:
        raise CannotRun(f"the package {package} is not installed") from error


def processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{len(named)} × {named[0]}" if named else platform.processor()


def in_turns(setting: Setting, figures: Figures, contenders: dict) -> None:
    """Measures each (a name, and what measures it once) in every round: forwards, then backwards, so that an hour that gets slower is slower for all."""
    order = list(contenders.items())
    for each_round in range(setting.rounds):
        for name, measure in order if each_round % 2 == 0 else order[::-1]:
            figures.attempt(name, measure)
