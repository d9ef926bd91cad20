"""A launcher of this tree with the lifecycle_runner below it."""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/support"))
from programs import BUILD, GUARD, eventually

PAGE = ROOT / "tools/launcher/status.html"

SILENT = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}


def runners(name, desired, flags=(), **more):
    """A group of the configuration."""
    return {
        "name": name,
        "command": [str(BUILD / "lifecycle_runner"), *flags],
        "desired_instances": desired,
        "min_ready_time": "50ms",
        "min_healthy_instances": desired - 1,
        "shutdown": {"grace_period": "5s", "max_duration": "10s", "poll_interval": "50ms", "kill_delay": "300ms"},
        **more,
    }


class Launcher:
    """`launcher run` on a port of loopback."""

    def __init__(self, *groups):
        self.folder = Path(tempfile.mkdtemp(prefix="ojs-observed-"))
        self.config = self.folder / "fleet.json"
        self.write(*groups)
        self.log = self.folder / "log"
        self.address = "127.0.0.1:0"
        self.start()

    def write(self, *groups):
        self.config.write_text(json.dumps({"process_groups": list(groups)}))

    def start(self):
        with self.log.open("wb") as log:
            command = ["run", "--config", self.config, "--admin", self.address, "--status-page", PAGE]
            self.process = subprocess.Popen([BUILD / "launcher", *command], **SILENT, stderr=log)
        self.address = eventually(self.listening, lambda: self.log.read_text())

    def listening(self):
        for line in self.log.read_text().splitlines():
            if "launcher admin listening" in line:
                return json.loads(line)["attributes"]["address"]
        if self.process.poll() is not None:
            raise AssertionError(self.log.read_text())
        return None

    def tool(self, *words, status=0):
        done = subprocess.run([BUILD / "launcher", *words, "--admin", self.address], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=GUARD)
        if done.returncode != status:
            raise AssertionError(f"{words}: status {done.returncode}, not {status}\n{done.stdout}{done.stderr}")
        return done.stdout

    def stop(self):
        """Twice SIGTERM, so that what does not end soon is forced."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(1)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGTERM)
                self.process.wait(GUARD)

    def remove(self):
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
