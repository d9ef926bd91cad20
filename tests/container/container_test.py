#!/usr/bin/env python3
"""The worker in an image made FROM scratch, run by podman and stopped as an orchestrator stops it; the launcher under
systemd; the controller as it is deployed. `make container-test` runs this; what it wants is built before:

    OJS_TEST_BUILD    the folder with dist/ojs_shutdown-VERSION/worker-*, static_controller and dev_backend; default build

The images consist of files of this machine alone. Everything is kept in a storage folder of its own, which goes away
at the end. What this machine cannot run is skipped, with the reason.
"""

import atexit
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from dev_backend import Backend
from programs import GUARD, eventually

BUILD = Path(os.environ.get("OJS_TEST_BUILD", "build")).resolve()
ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "examples/deploy/kubernetes"
VERSION = re.search(r'OJS_SHUTDOWN_VERSION "(.*)"', (ROOT / "src/ojs/base/config.hpp").read_text()).group(1)
WORKER = BUILD / f"dist/ojs_shutdown-{VERSION}/worker-{platform.machine()}"
ULIMITS = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
# What it takes to run a container, from what any machine can do to what a confined one needs: one that may not raise
# limits, one whose cgroups are read-only.
WAYS = [[], ULIMITS, [*ULIMITS, "--cgroups=disabled"]]


def run(*command, check=True, timeout=120):
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=timeout)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done


class Storage:
    """A container storage of our own, and every container and image in it."""

    def __init__(self):
        self.path = Path(tempfile.mkdtemp(prefix="ojs-container-"))
        self.where = ["--root", self.path / "root", "--runroot", self.path / "run", "--storage-driver", "vfs"]
        self.runtime = ["--runtime", "runc"] if shutil.which("runc") else []
        self.way = []
        self.containers = []

    def podman(self, *words, **how):
        return run("podman", *self.where, *self.runtime, *words, **how)

    def image(self, name, files):
        """An image of nothing but `files`, from path in the image to path on this machine."""
        tree = self.path / "tree" / name
        for inside, outside in files.items():
            target = tree / inside.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(outside, target)
            target.chmod(0o755)
        buildah = ["buildah", *self.where]
        container = run(*buildah, "from", "scratch").stdout.strip()
        try:
            run(*buildah, "copy", container, tree, "/")
            run(*buildah, "config", "--entrypoint", '["/worker"]', "--user", "65532:65532", "--stop-signal", "SIGTERM", container)
            run(*buildah, "commit", "-q", container, name)
        finally:
            run(*buildah, "rm", container)

    def find_way(self):
        """Finds flags with which containers run here. Where none do, what podman said each time."""
        said = []
        for way in WAYS:
            tried = self.podman("run", "--rm", "--network", "host", *way, "scratch-worker", "--help", check=False)
            if tried.returncode == 0 and "usage:" in tried.stdout:
                self.way = way
                return ""
            said.append(f"podman run {' '.join(way)}: status {tried.returncode}: {tried.stderr.strip()}")
        return "podman runs no container here:\n" + "\n".join(said)

    def remove(self):
        for each in self.containers:
            self.podman("rm", "-f", "-t", "0", each, check=False)
        shutil.rmtree(self.path, ignore_errors=True)


storage = None
obstacle = ""  # why nothing can be tried here


def setUpModule():
    global storage, obstacle
    missing = [program for program in ["podman", "buildah"] if not shutil.which(program)]
    if missing:
        obstacle = f"there is no {' and no '.join(missing)}; `make deps-container` installs them"
        return
    storage = Storage()
    atexit.register(storage.remove)  # also after a failure in here, or an interruption
    storage.image("scratch-worker", {"/worker": WORKER})
    obstacle = storage.find_way()
    if not obstacle:
        print("podman run", *storage.way)
        storage.image("controller", controller_files())


def tearDownModule():
    if storage:
        storage.remove()
    if obstacle:
        print(obstacle)


def libraries_of(program):
    return {library: library for library in re.findall(r"(/\S+) \(0x", run("ldd", program).stdout)}


def controller_files():
    """The controller, and a program for it to run."""
    files = {"/controller": BUILD / "static_controller"}
    if shutil.which("busybox"):
        files["/bin/sleep"] = shutil.which("busybox")
    return files


class ScratchImage(unittest.TestCase):
    def setUp(self):
        if obstacle:
            self.skipTest(obstacle.splitlines()[0])
        self.backend = Backend(BUILD)
        self.addCleanup(self.backend.close)

    def start(self):
        """The id of a container with a worker, on the host's network."""
        words = ["run", "-d", "--network", "host", *storage.way]
        for each in [f"OJS_URL={self.backend.url}", "OJS_LOG_FORMAT=text", "OJS_HEARTBEAT_INTERVAL=100ms",
                     "OJS_POLL_INTERVAL=20ms"]:
            words += ["--env", each]
        container = storage.podman(*words, "scratch-worker").stdout.strip()
        storage.containers.append(container)
        self.backend.await_event(event="beat", state="running")
        return container

    # [GS 4.3 (b)] [GS 8.1 (a)] [GS 8.2 (a)]
    def test_a_worker_as_pid_1_serves_quiets_resumes_drains_and_exits_0(self):
        container = self.start()
        self.backend.await_state(self.backend.push("noop"), "completed")
        storage.podman("exec", container, "/worker", "--signal", "quiet")
        self.backend.await_event(event="beat", state="quiet")
        storage.podman("exec", container, "/worker", "--signal", "resume")
        job = self.backend.push("sleep", 700)
        self.backend.await_state(job, "active")
        # Of jobs pushed one after the other a worker works on the first one before it asks for the second.
        self.backend.await_state(self.backend.push("noop"), "completed")
        storage.podman("stop", "-t", 30, container)
        status = storage.podman("wait", container, timeout=GUARD).stdout.strip()
        said = storage.podman("logs", container)
        log = said.stdout + said.stderr
        self.assertEqual(status, "0", log)
        self.assertEqual(self.backend.state(job), "completed")
        self.assertEqual(len(self.backend.events(event="beat", state="terminate")), 1)
        self.assertEqual(self.backend.events(event="nack"), [])
        self.assertIn("pid=1 ", log)
        self.assertNotRegex(log, "Z warn .*PID 1")


class Systemd(unittest.TestCase):
    """The launcher under a real systemd, by the unit of examples/deploy. Its programs are this machine's own."""

    PROGRAMS = ["/lib/systemd/systemd", "/usr/bin/systemctl", "/lib/systemd/systemd-shutdown"]
    UNITS = ["basic", "sysinit", "shutdown", "sockets", "timers", "paths", "slices", "umount", "final"]
    FLEET = {
        "state_file": "/run/ojs-launcher/state",
        "process_groups": [{
            "name": "kv", "desired_instances": 2, "min_healthy_instances": 2,
            "command": ["/usr/local/bin/lifecycle_runner", "--behavior", "slow-drain", "--drain-duration", "2500ms"],
        }],
    }
    # Shorter than a drain and than a roll: without EXTEND_TIMEOUT_USEC and WATCHDOG=1 it would be killed.
    SHORT = "[Service]\nTimeoutStopSec=1s\nWatchdogSec=3s\n"

    def setUp(self):
        missing = [each for each in [*self.PROGRAMS, BUILD / "launcher"] if not os.path.exists(each)]
        if obstacle or missing:
            self.skipTest(obstacle.splitlines()[0] if obstacle else f"there is no {missing[0]}")
        with tempfile.TemporaryDirectory(prefix="ojs-systemd-") as folder:
            storage.image("systemd", self.files(Path(folder)))
        # SYS_ADMIN: for the unit's ProtectSystem and PrivateTmp.
        started = storage.podman(
            "run", "-d", "--systemd=always", "--network", "none", "--user", "0", "--cap-add", "SYS_ADMIN",
            *storage.way, "--entrypoint", json.dumps(["/lib/systemd/systemd"]), "systemd", check=False)
        if started.returncode != 0:
            self.skipTest(f"podman runs no systemd here: {started.stderr.strip()}")
        self.id = started.stdout.strip()
        storage.containers.append(self.id)
        eventually(lambda: self.run_in("/usr/bin/systemctl", "is-active", "default.target", check=False)
                   .stdout.strip() == "active", lambda: storage.podman("logs", self.id).stdout)

    def files(self, folder):
        made = {"etc/ojs-launcher.json": json.dumps(self.FLEET), "etc/passwd": "root:x:0:0::/:/\n",
                "etc/group": "root:x:0:\n", "etc/machine-id": "",
                "etc/systemd/system/ojs-launcher.service.d/short.conf": self.SHORT}
        files = {}
        for inside, text in made.items():
            (folder / inside).parent.mkdir(parents=True, exist_ok=True)
            (folder / inside).write_text(text)
            files["/" + inside] = folder / inside
        units = "/lib/systemd/system"
        files.update({f"{units}/{name}.target": f"{units}/{name}.target" for name in self.UNITS})
        files[f"{units}/default.target"] = f"{units}/basic.target"
        files["/etc/systemd/system/ojs-launcher.service"] = MANIFESTS.parent / "ojs-launcher.service"
        programs = {each: each for each in self.PROGRAMS}
        programs.update({f"/usr/local/bin/{each}": BUILD / each for each in ["launcher", "lifecycle_runner"]})
        for inside, outside in programs.items():
            files.update({inside: outside, **libraries_of(outside)})
        return files

    def run_in(self, *words, **how):
        return storage.podman("exec", "--env", "LAUNCHER_ADMIN=unix:/run/ojs-launcher/admin.sock", self.id, *words, **how)

    def show(self, name):
        return self.run_in("/usr/bin/systemctl", "show", "--value", "-p", name, "ojs-launcher").stdout.strip()

    def test_a_launcher_unit_starts_rolls_and_stops(self):
        self.run_in("/usr/bin/systemctl", "start", "ojs-launcher")
        self.assertEqual(self.show("StatusText"), "running, 2 processes ready")
        main = self.show("MainPID")
        rolled = self.run_in("/usr/local/bin/launcher", "roll", "kv", check=False)
        self.assertEqual(rolled.returncode, 0, rolled.stdout + rolled.stderr)
        self.assertEqual((self.show("ActiveState"), self.show("MainPID"), self.show("NRestarts")), ("active", main, "0"))
        self.assertGreater(int(self.show("WatchdogTimestampMonotonic")), 0)
        began = time.monotonic()
        self.run_in("/usr/bin/systemctl", "stop", "ojs-launcher")
        self.assertGreater(time.monotonic() - began, 2)  # longer than TimeoutStopSec
        self.assertEqual((self.show("Result"), self.show("ExecMainStatus"), self.show("ActiveState")),
                         ("success", "0", "inactive"))


class ControllerAsDeployed(unittest.TestCase):
    """The controller under the configuration, the command and the hooks of examples/deploy/kubernetes."""

    def setUp(self):
        if obstacle or not shutil.which("busybox"):
            self.skipTest(obstacle.splitlines()[0] if obstacle else "there is no busybox")
        self.folder = Path(tempfile.mkdtemp(prefix="ojs-controller-"))
        self.addCleanup(shutil.rmtree, self.folder)
        for name in ["tmp", "spool/request", "config"]:
            (self.folder / name).mkdir(parents=True)
        block = re.search(r"controller\.json: \|\n((?: {4}.*\n)+)", (MANIFESTS / "controller-config.yaml").read_text())
        config = {**json.loads(block.group(1)), "command": ["/bin/sleep", "600"]}
        (self.folder / "config/controller.json").write_text(json.dumps(config))
        (self.folder / "spool/request/job-1").write_text("input")
        for each in [self.folder, *self.folder.rglob("*")]:
            os.chown(each, 65532, 65532)

    def run_controller(self, *words, how=("--rm",), entrypoint="/controller"):
        places = [("tmp", "/tmp"), ("spool", "/spool"), ("config", "/etc/controller")]
        volumes = [f"--volume={self.folder / outside}:{inside}" for outside, inside in places]
        return storage.podman("run", "--network", "none", *storage.way, *how, *volumes,
                              "--entrypoint", json.dumps([entrypoint]), "controller", *words)

    def start(self, command):
        self.id = self.run_controller(*command[1:], how=["-d"], entrypoint=command[0]).stdout.strip()
        storage.containers.append(self.id)
        eventually(lambda: not self.requests(), lambda: storage.podman("logs", self.id).stderr)
        eventually(lambda: "sleep" in storage.podman("top", self.id, "comm").stdout, "the job's child")

    def requests(self):
        return os.listdir(self.folder / "spool/request")

    # [Spot target (b)] [Spot use case 1]
    def test_the_prestop_hook_of_a_spot_pod_requeues_the_job(self):
        command, hook = commands_of("controller-spot.yaml")
        self.start(command)
        done = storage.podman("exec", self.id, *hook, check=False)
        self.assertEqual(int(storage.podman("wait", self.id, timeout=GUARD).stdout), 0)
        self.assertEqual(self.requests(), ["job-1"])
        # 137: the container ended under the hook, which had done its work.
        self.assertIn(done.returncode, [0, 137], done.stdout + done.stderr)
        self.assertEqual((self.folder / "tmp/termination-type").read_text(), "SPOT_RECLAIM\n")

    # [Spot use case 3]
    def test_a_controller_after_mark_normal_completes_its_job(self):
        mark, command = commands_of("controller-normal.yaml")[:2]
        self.run_controller(*mark[1:], entrypoint=mark[0])
        self.start(command)
        storage.podman("kill", "-s", "TERM", self.id)
        log = eventually(lambda: re.search(".*Will wait for completion.*", storage.podman("logs", self.id).stderr), "a drain")
        self.assertIn("execution-job-1", log.group(0))
        self.assertEqual(self.requests(), [])


def commands_of(manifest):
    """Every `command: [...]` of a manifest, in its order."""
    return [json.loads(found) for found in re.findall(r"^ *command: (\[.*\])$", (MANIFESTS / manifest).read_text(), re.M)]


def end(*_):
    raise KeyboardInterrupt  # so that what is to be removed is removed


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end)
    unittest.main(verbosity=2)
