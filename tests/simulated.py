"""The simulator beside the server it stands for: what both say of one model on this machine, policy by policy.

    python simulated.py --binary target/release/cellwright --work FOLDER [--rounds 4] [--policies cellular,graph:10]

`cellwright-lab` must lie beside the binary (`cargo build --release -p cellwright -p cellwright-lab`).

The model is an LSTM (h = x = 1024) over tokens, called over HTTP. Its requests are as long as
Europarl's sentences. A round takes one policy after the other. For each it measures the server's
throughput at saturation and its latency at half load, calibrates the cost of tasks under that policy,
and measures half load again. So the prediction of half load stands between two measurements of it.
Each measurement has its own arrivals, because a few seconds hold few of the bursts that make a 90th
percentile. The output is the median over the rounds, the range, and the error of the prediction beside
the error that is allowed. Needs numpy, and an idle machine.
"""

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "peers"))
import asked  # noqa: E402

HIDDEN, VOCABULARY, REQUESTS = 1024, 1000, 4000
WORKERS, CONNECTIONS, BATCH_MAX = 2, 256, 16
POLICIES = "cellular,adaptive,lazy:1000:90,graph:10"
# How far a prediction may be off: of what is answered at most, and of the 90th percentile of latency at half of that.
MOST_OFF, P90_OFF = 0.10, 0.20


@dataclass
class Setting:
    binary: Path
    work: Path
    seconds: float
    bundle: Path = field(init=False)

    def __post_init__(self):
        self.bundle = asked.tokens_model(self.work, HIDDEN, VOCABULARY)
        limit = f"\n[cells.layer0]\nbatch_max = {BATCH_MAX}\n"
        model = self.bundle / "model.toml"
        if limit not in model.read_text(encoding="utf-8"):
            with model.open("a", encoding="utf-8") as file:
                file.write(limit)
        tokens = asked.sequences(VOCABULARY, REQUESTS)
        lines = ({"inputs": [{"name": "tokens", "datatype": "INT64", "shape": [len(each)], "data": each.tolist()}]} for each in tokens)
        (self.work / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        (self.work / "lengths.csv").write_text("".join(f"{len(each)}\n" for each in tokens), encoding="utf-8")

    def run(self, *arguments) -> str:
        program = self.binary if arguments[0] == "bench" else self.binary.with_name("cellwright-lab")
        done = subprocess.run([str(each) for each in (program, *arguments)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{program.name} {' '.join(map(str, arguments[:2]))}: {done.stderr.strip()}")
        return done.stdout

    def asked(self) -> list:
        workers = [part for _ in range(WORKERS) for part in ("--worker", "cpu:threads=1")]
        return [self.bundle, "--input", self.work / "requests.jsonl", *workers]

    def calibrate(self, policy: str) -> Path:
        device = self.work / "device.toml"
        self.run("calibrate", *self.asked(), "--http", "--policy", policy, "--seconds", 1.5, "--output", device)
        return device

    def measured(self, policy: str, rate: float | str, seed: int) -> dict:
        load = ["--connections", CONNECTIONS, "--rate", rate, "--seed", seed, "--seconds", self.seconds]
        return json.loads(self.run("bench", "serve", *self.asked(), "--policy", policy, *load, "--json"))["report"]["total"]

    def predicted(self, policy: str, device: Path, load: list) -> dict:
        server = ["--devices", WORKERS, "--batch-max", BATCH_MAX, "--low-water", 2, "--release", "node"]
        said = self.run("simulate", "--device", device, *server, "--lengths", self.work / "lengths.csv", "--policy", policy, "--seconds", 60, *load, "--json")
        return json.loads(said)


@dataclass
class Side:
    """What was measured of one quantity, and what was predicted of it, by rounds."""

    measured: list[float] = field(default_factory=list)
    predicted: list[float] = field(default_factory=list)

    def off(self) -> float:
        return statistics.median(self.predicted) / statistics.median(self.measured) - 1

    def as_markdown(self, unit: str) -> str:
        said = [f"{number(statistics.median(each))}{unit} ({number(min(each))} to {number(max(each))})" for each in (self.measured, self.predicted)]
        return f"{said[0]} | {said[1]} | {100 * self.off():+.0f} %"


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--binary", type=Path, required=True)
    arguments.add_argument("--work", type=Path, required=True)
    arguments.add_argument("--rounds", type=int, default=4)
    arguments.add_argument("--seconds", type=float, default=10, help="of each measurement; a fifth as long before it does not count [default: 10]")
    arguments.add_argument("--policies", default=POLICIES, help=f"with commas between them [default: {POLICIES}]")
    said = arguments.parse_args()
    policies = said.policies.split(",")
    said.work.mkdir(parents=True, exist_ok=True)
    setting = Setting(said.binary.resolve(), said.work, said.seconds)
    most, p90 = {each: Side() for each in policies}, {each: Side() for each in policies}
    half: dict[str, list[float]] = {each: [] for each in policies}
    for number_ in range(said.rounds):
        for policy in policies:
            most[policy].measured.append(setting.measured(policy, "max", number_)["throughput"])
            rate = round(most[policy].measured[-1] / 2)
            half[policy].append(rate)
            before = setting.measured(policy, rate, 2 * number_)
            device = setting.calibrate(policy)
            after = setting.measured(policy, rate, 2 * number_ + 1)
            p90[policy].measured += [each["latency"]["p90_us"] / 1e3 for each in (before, after)]
            most[policy].predicted.append(setting.predicted(policy, device, ["--clients", CONNECTIONS])["throughput"])
            p90[policy].predicted.append(setting.predicted(policy, device, ["--rate", rate, "--seed", number_])["p90_ms"])
            print(f"round {number_ + 1}, {policy}: at most {most[policy].as_markdown('/s')}; p90 at {rate}/s {p90[policy].as_markdown(' ms')}", file=sys.stderr)
    print("| policy | at most: measured | predicted | | at | p90: measured | predicted | |", "|---|---|---|---|---|---|---|---|", sep="\n")
    for policy in policies:
        print(f"| `{policy}` | {most[policy].as_markdown('/s')} | {number(statistics.median(half[policy]))}/s | {p90[policy].as_markdown(' ms')} |")
    off = [policy for policy in policies if abs(most[policy].off()) > MOST_OFF or abs(p90[policy].off()) > P90_OFF]
    print(f"\nMedians of {said.rounds} rounds (of twice as many measurements of p90). Goals: within {MOST_OFF:.0%} at most, within {P90_OFF:.0%} of p90;", end=" ")
    print(f"not met: {', '.join(off)}." if off else "all met.")


if __name__ == "__main__":
    main()
