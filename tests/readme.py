"""Runs the commands of README.md from top to bottom, as they stand there.

    readme.py --binary BINARY --work FOLDER                     every command
    readme.py --binary BINARY --work FOLDER --part page         all but "Your own model in ten minutes"
    readme.py --binary BINARY --work FOLDER --part own-model    that section alone

The section's commands run in FOLDER, which is emptied first, and all others in the checkout. In the
section, a block that begins with a file's name in a comment becomes that file. `cellwright` is
BINARY, and `python` is this interpreter, which needs torch for the section. The server listens on a
free port instead of 8000 and keeps its data in FOLDER. The demo runs with `--once`. Every command
must succeed, and `curl` must print an answer.
"""

import argparse
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
OWN_MODEL = "Your own model in ten minutes"
ADDRESS = "127.0.0.1:8000"
# `tests/run` calls this script. The others set up what is set up here.
SKIPPED = ("./tests/run", "pip install ", "export PATH=", "cd ", "alias ")
# The first command may have to compile the host.
COMMAND_MAX_S = 2400
OUTPUT_SHOWN_MAX = 300


def blocks(readme):
    """The page's fenced blocks: section, language, lines."""
    found = []
    for section in re.split(r"^## ", readme, flags=re.M):
        heading = section.split("\n", 1)[0]
        found += [(heading, language, text.splitlines()) for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", section, re.M | re.S)]
    return found


def commands(lines):
    """The commands of a shell block, without comments."""
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    stripped = (re.sub(r"(^|\s+)#\s.*", "", line).strip() for line in joined.split("\n"))
    return [line for line in stripped if line]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


class Shell:
    """Where commands run: their environment, and the server that one of them started."""

    def __init__(self, binary, work):
        programs = work / "bin"
        programs.mkdir(parents=True)
        (programs / "cellwright").symlink_to(binary.resolve())
        # A link would lose the packages that this interpreter sees.
        python = programs / "python"
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        self.address = f"127.0.0.1:{free_port()}"
        # What is set for another server is not meant for this one.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("CELLWRIGHT_")}
        self.environment = inherited | {
            "PATH": f"{programs.resolve()}:{os.environ['PATH']}",
            "CELLWRIGHT_LISTEN": self.address,
            "CELLWRIGHT_SERVER": f"http://{self.address}",
            "CELLWRIGHT_DATA": str((work / "data").resolve()),
            "CELLWRIGHT_CACHE": str((work / "cache").resolve()),
        }
        self.server = None

    def run(self, command, folder):
        """Runs one command; gives whether it was one to run."""
        if command.startswith(SKIPPED):
            print("skip", command, flush=True)
            return False
        print("$", command, flush=True)
        if command.endswith("&"):
            # A reader who comes from further up has a server already.
            if self.server is None:
                self.server = subprocess.Popen(["exec " + command[:-1]], shell=True, cwd=folder, env=self.environment)
            return True
        if command.startswith("cargo run ") and command.endswith(" demo"):
            command += " --once"
        asks = re.search(r"\bcurl\b", command)
        if asks and ADDRESS not in command:
            sys.exit(f"this line of README.md asks no server at {ADDRESS}: {command}")
        script = ["bash", "-euo", "pipefail", "-c", command.replace(ADDRESS, self.address)]
        output = subprocess.PIPE if asks else None
        ran = subprocess.run(script, cwd=folder, env=self.environment, timeout=COMMAND_MAX_S, stdout=output, text=True)
        if ran.returncode != 0:
            sys.exit(f"this line of README.md failed with status {ran.returncode}: {command}")
        if asks:
            print(ran.stdout[:OUTPUT_SHOWN_MAX].rstrip(), flush=True)
            if not ran.stdout.strip() or '{"error"' in ran.stdout:
                sys.exit(f"this line of README.md got no answer: {command}")
        return True

    def stop(self):
        """Stops the server; gives whether it ran until now and stopped in order."""
        if self.server is None:
            return True
        ran = self.server.poll() is None
        self.server.terminate()
        return self.server.wait(timeout=60) == 0 and ran


def check_packages(readme):
    """README.md tells its reader to install the packages that the tests install."""
    told = {name for line in re.findall(r"^pip install ([^#\n]*)", readme, re.M) for name in line.split()}
    pinned = (ROOT / "tests" / "tutorial.txt").read_text(encoding="utf-8")
    tested = set(re.findall(r"^([\w-]+)==", pinned, re.M))
    if told != tested:
        sys.exit(f"README.md installs {sorted(told)}, and tests/tutorial.txt {sorted(tested)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--part", choices=["page", "own-model"])
    options = parser.parse_args()

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    check_packages(readme)
    shutil.rmtree(options.work, ignore_errors=True)
    shell = Shell(options.binary, options.work)
    ran = {"page": [], "own-model": []}
    try:
        for heading, language, lines in blocks(readme):
            part = "own-model" if heading == OWN_MODEL else "page"
            if options.part not in (None, part):
                continue
            if language == "sh":
                folder = options.work if part == "own-model" else ROOT
                ran[part] += [command for command in commands(lines) if shell.run(command, folder)]
            elif part == "own-model":
                file = options.work / lines[0].removeprefix("# ")
                file.parent.mkdir(exist_ok=True)
                file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    finally:
        in_order = shell.stop()
    if not in_order:
        sys.exit("the server of README.md did not run to the end, or did not stop in order")
    for part, found in ran.items():
        if options.part in (None, part) and (len(found) < 5 or not any("curl " in command for command in found)):
            sys.exit(f"only these commands were found in the part `{part}`: {found}")
    if options.part != "own-model" and not any(command.startswith("cargo run --release -- ") for command in ran["page"]):
        sys.exit("README.md names no first command")
    print(f"{sum(map(len, ran.values()))} commands of README.md did what it says")


if __name__ == "__main__":
    main()
