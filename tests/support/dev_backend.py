"""build/dev_backend on loopback, with its ledger."""

import json
import subprocess
import tempfile
import urllib.request
from pathlib import Path

from programs import eventually


class Backend:
    """Has no job at first."""

    def __init__(self, build, *flags, has_ledger=True):
        self.folder = tempfile.TemporaryDirectory(prefix="ojs-backend-")
        self.ledger = Path(self.folder.name) / "ledger"
        flags = (*flags, "--ledger", self.ledger) if has_ledger else flags
        self.process = subprocess.Popen([build / "dev_backend", "--port", "0", "--quiet", *flags], text=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.url = "http://" + self.process.stdout.readline().removeprefix("listening on ").strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.folder.cleanup()

    def ask(self, path, body=None):
        text = body and json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, text, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def push(self, kind, *args):
        return self.ask("/ojs/v1/jobs", {"type": kind, "args": args})["job"]["id"]

    def state(self, job):
        return self.ask(f"/ojs/v1/jobs/{job}")["job"]["state"]

    def await_state(self, job, state):
        eventually(lambda: self.state(job) == state, f"job {job} {state}")

    def events(self, **wanted):
        lines = self.ledger.read_text().splitlines(keepends=True) if self.ledger.exists() else []
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in events if wanted.items() <= event.items()]

    def await_event(self, **wanted):
        return eventually(lambda: self.events(**wanted), lambda: f"{wanted} in\n{self.ledger.read_text()}")[0]
