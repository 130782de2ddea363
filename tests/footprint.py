"""How soon a server is ready, what it takes of memory, and of the processor when nobody asks it, and what an upload of a gigabyte adds to that.

    python footprint.py --binary target/release/cellwright --work FOLDER [--runs 10]

The models are those of `examples/`, cached: the server has served them before. Times run from the start of the process to the moment when all of them
are ready; memory is the process's resident set. The large bundle is an LSTM over tokens with a table of a gigabyte.
"""

import argparse
import http.client
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tarfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "clients"))
import bundles  # noqa: E402

EXAMPLES = ("digits", "dates", "listops")
MIB = 1 << 20
# For how long nobody asks the server: the system counts processor time in hundredths of a second.
IDLE_S = 5


class Server:
    def __init__(self, binary: Path, data: Path, models: tuple):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        begun = time.monotonic()
        command = [binary, "serve", "--listen", f"127.0.0.1:{self.port}", "--data", data]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while not all(self.get(f"/v2/models/{model}/ready") for model in models) or not self.get("/v2/health/ready"):
            if self._process.poll() is not None or time.monotonic() > begun + 60:
                sys.exit("the server does not start")
            time.sleep(0.001)
        self.ready_after = time.monotonic() - begun

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=60)

    def get(self, path: str) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def memory(self, what: str = "VmRSS") -> int:
        """Bytes of its resident set: now, or the most there has been (`VmHWM`)."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith(f"{what}:"):
                return int(line.split()[1]) * 1024
        sys.exit(f"the system does not say {what}")

    def processor(self) -> float:
        """Seconds of processor time that it has taken."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def forget_peak(self) -> None:
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")

    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def weights(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def upload(server: Server, archive: Path) -> tuple:
    """Sends it; the most memory there was until its last byte was taken, and what was answered."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    connection.putrequest("PUT", "/v1/models/tokens")
    connection.putheader("content-length", str(archive.stat().st_size))
    connection.endheaders()
    with archive.open("rb") as file:
        while piece := file.read(1 << 20):
            connection.send(piece)
    received = server.memory("VmHWM")
    response = connection.getresponse()
    body = response.read()
    if response.status not in (200, 201):
        sys.exit(f"the upload was refused: {response.status} {body[:500]!r}")
    return received, json.loads(body)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--binary", type=Path, required=True)
    arguments.add_argument("--work", type=Path, required=True)
    arguments.add_argument("--runs", type=int, default=10)
    options = arguments.parse_args()
    shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True)
    data = options.work / "data"

    with Server(options.binary, data, ()) as server:
        for example in EXAMPLES:
            subprocess.run([options.binary, "push", ROOT / "examples" / example, "--server", server.url()], check=True, capture_output=True)
    ready, idle, busy = [], [], []
    for _ in range(options.runs):
        with Server(options.binary, data, EXAMPLES) as server:
            ready.append(server.ready_after * 1e3)
            time.sleep(1)
            idle.append(server.memory() - sum(weights(ROOT / "examples" / example) for example in EXAMPLES))
            before = server.processor()
            time.sleep(IDLE_S)
            busy.append((server.processor() - before) / IDLE_S)
    print(f"start to ready, three cached models: median {statistics.median(ready):.0f} ms, most {max(ready):.0f} ms, of {options.runs}")
    print(f"idle memory beside the weights: median {statistics.median(idle) / MIB:.0f} MiB, most {max(idle) / MIB:.0f} MiB")
    print(f"idle, of one processor: median {statistics.median(busy):.2%}, most {max(busy):.2%}")

    bundle = bundles.tokens(options.work / "large", hidden=64, vocabulary=1 << 20, embedding=256)
    archive = options.work / "large.tar"
    with tarfile.open(archive, "w", format=tarfile.USTAR_FORMAT) as tar:
        for file in sorted(bundle.iterdir()):
            tar.add(file, file.name)
    with Server(options.binary, data, EXAMPLES) as server:
        time.sleep(1)
        server.forget_peak()
        before = server.memory()
        received, _ = upload(server, archive)
        most, after = server.memory("VmHWM"), server.memory()
        size = weights(bundle)
    print(f"a bundle of {archive.stat().st_size / MIB:.0f} MiB: {(received - before) / MIB:.0f} MiB more until its last byte was taken;")
    print(f"  its weights are {size / MIB:.0f} MiB: {(most - before) / MIB:.0f} MiB more at most while it was checked, {(after - before) / MIB:.0f} MiB once it served")


if __name__ == "__main__":
    main()
