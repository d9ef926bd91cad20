"""River's own client, built from river_interop/ where Go is installed: once with the network, for the modules."""

import json
import os
import shutil
import subprocess
from pathlib import Path

from programs import BUILD, Program

SOURCE = Path(__file__).with_name("river_interop")
PROGRAM = BUILD / "river" / "neighbour"


def build():
    """Why it is not there, or ""."""
    if not shutil.which("go"):
        return "no go"
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["go", "build", "-o", PROGRAM, "."], cwd=SOURCE, capture_output=True, text=True)
    return "" if done.returncode == 0 else f"go build: {done.stderr.strip()[-500:]}"


def ask(db, *command, lines=()):
    """What a command of the neighbour's prints, as JSON."""
    done = subprocess.run([PROGRAM, *map(str, command)], input="".join(json.dumps(each) + "\n" for each in lines),
                          capture_output=True, text=True, env={**os.environ, "DATABASE_URL": db.url()})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout.strip() else None


def worker(test, db, *flags):
    return Program(test, PROGRAM, *flags, "work", DATABASE_URL=db.url())
