"""The program under test: a `cellwright serve` of its own data folder, and what the tests know of the examples it serves."""

import json
import os
import queue
import subprocess
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
# How long a start or a stop may take on a busy machine.
PATIENCE_S = 60


def binary() -> Path:
    """The release binary: `CELLWRIGHT_BINARY`, or the one in the target folder."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    path = Path(os.environ.get("CELLWRIGHT_BINARY", target / "release" / "cellwright"))
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there: build it with `cargo build --release`, or name it in CELLWRIGHT_BINARY")
    return path


def command(*arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess:
    """One run of `cellwright`, without what this shell's environment would set."""
    return subprocess.run([binary(), *arguments], check=check, capture_output=True, text=True, timeout=PATIENCE_S, env=environment())


def environment() -> dict:
    return {name: value for name, value in os.environ.items() if not name.startswith("CELLWRIGHT_")}


class Server:
    """A running server; `with` ends it."""

    def __init__(self, data: Path, *options: str):
        arguments = [binary(), "serve", "--listen", "127.0.0.1:0", "--data", data, *options]
        self._said = []
        self._process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=environment())
        lines = queue.SimpleQueue()
        threading.Thread(target=self._listen, args=(lines,), daemon=True).start()
        self.url = self._address(lines)
        self.authority = self.url.removeprefix("http://")
        self._wait_until_ready()

    def _listen(self, lines: queue.SimpleQueue) -> None:
        for line in self._process.stderr:
            self._said.append(line)
            lines.put(line)
        lines.put("")

    def _address(self, lines: queue.SimpleQueue) -> str:
        while line := lines.get(timeout=PATIENCE_S):
            if line.startswith("listening on "):
                return line.split()[2]
        raise RuntimeError(f"the server does not start; it said:\n{self.said()}")

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"{self.url}/v2/health/ready", timeout=PATIENCE_S):
                    return
            except urllib.error.HTTPError as error:
                if error.code != 503:
                    raise
            time.sleep(0.02)
        raise RuntimeError(f"the server is not ready after {PATIENCE_S} s; it said:\n{self.said()}")

    def said(self) -> str:
        """What it has said on standard error."""
        return "".join(self._said)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def push(self, bundle: Path, *options: str) -> dict:
        """Uploads a bundle by `cellwright push`; gives the server's answer."""
        return json.loads(command("push", bundle, "--json", "--server", self.url, *options).stdout)

    def stop(self) -> int:
        """Asks it to stop; gives its exit status."""
        self._process.terminate()
        return self._process.wait(timeout=PATIENCE_S)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_) -> None:
        if self.is_running():
            self._process.kill()
            self._process.wait()


@dataclass(frozen=True)
class Sample:
    """A request of an example and what PyTorch answered it."""

    request: dict
    outputs: dict


def samples(example: str) -> list[Sample]:
    """The samples of an example, in order."""
    requests, expected = (_lines(EXAMPLES / example / name) for name in ("samples.jsonl", "expected.jsonl"))
    return [
        Sample(request, {output["name"]: output for output in answer["outputs"]})
        for request, answer in zip(requests, expected, strict=True)
    ]


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
