"""Rivals that are libraries, each in processes of its own: the side that starts them and puts their figures together. Theirs is `program.py`."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from setting import CannotRun

HERE = Path(__file__).resolve().parent
# After which processes are ended: more than any pass over all requests takes.
LONGEST_S = 1200


@dataclass(frozen=True)
class Library:
    """A program (a module here with a class `Program`), the model it is given, and how it may use the machine."""

    name: str
    program: str
    model: Path
    requests: Path
    threads: int
    processes: int = 1
    batch: int = 64
    sort: bool = True
    """Whether batches are of like sizes, as they are for those who have all requests at hand."""
    bucket: int | None = None
    """Lengths in a sorted batch differ by less than this, so that little of it is padding; without it, a batch is simply the next so many requests."""
    padding: str = "padded"
    """How PyTorch makes the sequences of a batch fit: `padded` or `packed`."""

    def answers(self, count: int) -> list[np.ndarray]:
        return [np.array(answer) for answer in self._run(1, do="answers", count=count)[0]["answers"]]

    def passed(self, part: int = 1) -> float:
        """Requests a second where all are at hand: one pass over all of them, or over each `part`th."""
        said = self._run(self.processes, do="pass", part=part)
        # One clock for all processes of the machine.
        took = max(each["ended"] for each in said) - min(each["began"] for each in said)
        return sum(each["count"] for each in said) / took

    def single(self, seconds: float) -> dict:
        """Latencies in ms of one request after the other."""
        return quantiles(self._run(1, do="single", seconds=seconds)[0]["latencies"])

    def under(self, seconds: float, rate: float) -> dict:
        """Latencies in ms where so many requests a second arrive at random and whatever waits, up to a batch, runs together: no window, no network."""
        said = self._run(self.processes, do="arrivals", seconds=seconds, rate=rate / self.processes)
        return quantiles([latency for each in said for latency in each["latencies"]])

    def _run(self, processes: int, **does) -> list[dict]:
        jobs = [
            {
                "program": self.program,
                "model": str(self.model),
                "requests": str(self.requests),
                "threads": self.threads,
                "batch": self.batch,
                "sort": self.sort,
                "bucket": self.bucket,
                "padding": self.padding,
                "share": [number, processes],
                **does,
            }
            for number in range(processes)
        ]
        command = [sys.executable, HERE / "program.py"]
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads)}
        # A file, for complaints in a pipe that nobody reads would stop the one who complains.
        with tempfile.TemporaryFile("a+", encoding="utf-8", errors="replace") as complaints:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": complaints}
            started = [subprocess.Popen([*command, json.dumps(job)], **pipes, text=True, env=environment) for job in jobs]
            end = threading.Timer(LONGEST_S, lambda: [process.kill() for process in started])
            end.start()
            try:
                return self._results(started, complaints)
            finally:
                end.cancel()
                for process in started:
                    process.kill()
                    process.wait()

    def _results(self, started: list, complaints) -> list[dict]:
        """Of all of them, who begin at once when the last of them is ready."""
        for process in started:
            while (said := process.stdout.readline()) != "ready\n":
                if not said:
                    raise self._fails(complaints)
        for process in started:
            process.stdin.write("go\n")
            process.stdin.flush()
        results = []
        for process in started:
            said, _ = process.communicate()
            if process.returncode != 0:
                raise self._fails(complaints)
            results.append(json.loads(said.splitlines()[-1]))
        return results

    def _fails(self, complaints) -> CannotRun:
        complaints.seek(0)
        return CannotRun(f"{self.name} fails: {last_line(complaints.read())}")


def ways(cores: int) -> dict[str, dict]:
    """What differs in a `Library` that has the whole machine: one process of a thread a core, or a process a core."""
    if cores == 1:
        return {"threads: 1": {"threads": 1}}
    return {f"threads: {cores}": {"threads": cores}, f"{cores} processes": {"threads": 1, "processes": cores}}


def quantiles(latencies: list[float]) -> dict:
    return {"p50": float(np.quantile(latencies, 0.5)) * 1e3, "p90": float(np.quantile(latencies, 0.9)) * 1e3}


def last_line(said: str) -> str:
    return (said.strip().splitlines() or ["without a word"])[-1]
