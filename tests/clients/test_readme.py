"""The `curl` commands of README.md, as they stand there, but for the port."""

import re
import subprocess

import pytest

from serving import ROOT

FENCE = re.compile(r"^```(?:sh|bash|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Made and asked from first to last by tests/readme.py.
OWN_MODEL = re.compile(r"^## Your own model .*?(?=^## )", re.MULTILINE | re.DOTALL)
ADDRESS = re.compile(r"(?:127\.0\.0\.1|localhost):8000")


def commands() -> list[str]:
    """Every command of a shell block that names `curl`, with the lines it goes on for."""
    found = []
    text, cut = OWN_MODEL.subn("", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert cut == 1
    for block in FENCE.findall(text):
        pending = ""
        for line in block.splitlines():
            pending = f"{pending}\n{line}" if pending else line
            if not is_whole(pending):
                continue
            if re.search(r"\bcurl\b", pending.split("#")[0]):
                found.append(pending)
            pending = ""
    return found


def is_whole(text: str) -> bool:
    if text.rstrip().endswith(("\\", "|")):
        return False
    return subprocess.run(["bash", "-n", "-c", text], capture_output=True, check=False).returncode == 0


def test_there_are_some():
    assert commands(), "README.md shows nobody how to call the server with curl"


@pytest.mark.parametrize("command", commands())
def test_it_does_what_it_says(server, command):
    script = f"set -o pipefail\n{ADDRESS.sub(server.authority, command)}"
    assert server.authority in script, "it speaks to another server"
    ran = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() and '{"error"' not in ran.stdout, ran.stdout
