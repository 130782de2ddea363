"""Runs README.md's section "Your own model in ten minutes" as it stands there, in an empty folder.

    readme.py --binary target/release/cellwright --work FOLDER

Blocks whose first line is a comment with a file's name become that file; shell blocks run one line after the other, `python` being this interpreter and
`cellwright` the binary. Every command must succeed. The server of the section gets a port of its own where the text says 8000.
"""

import argparse
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys

SECTION = "## Your own model in ten minutes"
PORT = "8000"


def blocks(readme):
    """The fenced blocks of the section: language and lines."""
    start = readme.index(SECTION)
    section = readme[start : readme.index("\n## ", start + 1)]
    return [(language, text.splitlines()) for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", section, re.M | re.S)]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    options = parser.parse_args()
    readme = (pathlib.Path(__file__).parent.parent / "README.md").read_text()

    shutil.rmtree(options.work, ignore_errors=True)
    programs = options.work / "bin"
    programs.mkdir(parents=True)
    (programs / "cellwright").symlink_to(options.binary.resolve())
    # A link would lose the packages that this interpreter sees.
    python = programs / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    port = free_port()
    environment = os.environ | {
        "PATH": f"{programs.resolve()}:{os.environ['PATH']}",
        "CELLWRIGHT_LISTEN": f"127.0.0.1:{port}",
        "CELLWRIGHT_SERVER": f"http://127.0.0.1:{port}",
        "CELLWRIGHT_CACHE": str((options.work / "cache").resolve()),
    }

    ran, servers = 0, []
    try:
        for language, lines in blocks(readme):
            if language in ("python", "toml"):
                file = options.work / lines[0].removeprefix("# ")
                file.parent.mkdir(exist_ok=True)
                file.write_text("\n".join(lines) + "\n")
                continue
            for line in lines:
                command = line.replace(PORT, port)
                print("$", line, flush=True)
                if command.rstrip().endswith("&"):
                    servers.append(subprocess.Popen(["exec " + command.rstrip()[:-1]], shell=True, cwd=options.work, env=environment))
                else:
                    answer = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=options.work, env=environment, timeout=600)
                    if answer.returncode != 0:
                        sys.exit(f"this line of README.md failed with status {answer.returncode}: {line}")
                ran += 1
        if ran < 5:
            sys.exit(f"only {ran} commands were found in the section")
    finally:
        for server in servers:
            server.terminate()
            server.wait(timeout=60)
    print(f"{ran} commands of README.md did what it says")


if __name__ == "__main__":
    main()
