"""A launcher of this tree with the lifecycle_runner below it, and Chromium spoken to over its remote-debugging pipe."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/support"))
from dev_backend import GUARD, eventually

BUILD = Path(os.environ.get("OJS_TEST_BUILD", "build")).resolve()
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

    def __init__(self, *groups, token=""):
        self.folder = Path(tempfile.mkdtemp(prefix="ojs-observed-"))
        self.config = self.folder / "fleet.json"
        self.write(*groups)
        self.flags = []
        if token:
            (self.folder / "token").write_text(token + "\n")
            self.flags = ["--token-file", self.folder / "token"]
        self.log = self.folder / "log"
        self.address = "127.0.0.1:0"
        self.start()

    def write(self, *groups):
        self.config.write_text(json.dumps({"process_groups": list(groups)}))

    def start(self):
        with self.log.open("wb") as log:
            command = ["run", "--config", self.config, "--admin", self.address, *self.flags, "--status-page", PAGE]
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
        done = subprocess.run([BUILD / "launcher", *words, "--admin", self.address, *self.flags], stdin=subprocess.DEVNULL,
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


class Chromium:
    """One browser with a profile of its own; pages are its tabs."""

    FLAGS = ["--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage"]
    QUIET = ["--disable-background-networking", "--disable-component-update", "--no-default-browser-check"]

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="ojs-chromium-")
        theirs_in, self.to = os.pipe()
        self.back, theirs_out = os.pipe()
        # It has no sandbox for root, in containers above all; it opens nothing but our own page.
        rootless = ["--no-sandbox"] if os.geteuid() == 0 else []

        def as_three_and_four():  # where --remote-debugging-pipe reads and writes
            reads, writes = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(reads, 3)
            os.dup2(writes, 4)

        self.process = subprocess.Popen(
            ["chromium", *self.FLAGS, *self.QUIET, *rootless, f"--user-data-dir={self.folder}", "about:blank"],
            **SILENT, stderr=subprocess.DEVNULL, preexec_fn=as_three_and_four, close_fds=False, start_new_session=True)
        os.close(theirs_in)
        os.close(theirs_out)
        self.number = 0
        self.answers = {}
        self.events = []
        self.news = threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        """Messages are JSON, each with a zero byte after it."""
        left = b""
        while True:
            more = os.read(self.back, 65536)
            if not more:
                return
            *whole, left = (left + more).split(b"\0")
            with self.news:
                for message in map(json.loads, whole):
                    if "id" in message:
                        self.answers[message["id"]] = message
                    else:
                        self.events.append(message)
                self.news.notify_all()

    def send(self, method, session=None, **parameters):
        self.number += 1
        number = self.number
        message = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        with self.news:
            if not self.news.wait_for(lambda: number in self.answers, GUARD):
                raise AssertionError(f"chromium does not answer {method}")
            answer = self.answers.pop(number)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def stop(self):
        os.killpg(self.process.pid, signal.SIGKILL)  # its own session; nothing of it is worth keeping
        self.process.wait(GUARD)
        os.close(self.to)
        shutil.rmtree(self.folder, ignore_errors=True)


class Tab:
    def __init__(self, browser, width=1000, height=700, dark=False):
        self.browser = browser
        self.target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.send("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(domain + ".enable")
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.send("Emulation.setDeviceMetricsOverride", **screen)
        scheme = "dark" if dark else "light"
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def send(self, method, **parameters):
        return self.browser.send(method, self.session, **parameters)

    def open(self, url):
        self.send("Page.navigate", url=url)

    def value(self, script):
        """What the script gives, in the page."""
        done = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise AssertionError(f"{script}: {json.dumps(done['exceptionDetails'])}")
        return done["result"].get("value")

    def text(self):
        return self.value("document.body ? document.body.innerText : ''") or ""

    def shows(self, *texts):
        """Waits until the page shows all of them; what it shows then."""

        def seen():
            text = self.text()
            return text if all(each in text for each in texts) else None

        return eventually(seen, lambda: f"the page does not show {texts} but\n{self.text()}")

    def events_of(self, method):
        with self.browser.news:
            return [each["params"] for each in self.browser.events
                    if each["method"] == method and each.get("sessionId") == self.session]

    def close(self):
        self.browser.send("Target.closeTarget", targetId=self.target)
