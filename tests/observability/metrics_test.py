#!/usr/bin/env python3
"""examples/deploy/observability against a Prometheus that scrapes a launcher and a worker to which things happen. `make
observability-test` runs this. OJS_TEST_BUILD: the folder with launcher, lifecycle_runner and worker; default build. Without
prometheus and promtool what needs them is skipped."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/support"))
from programs import BUILD, GUARD, Ports, eventually  # noqa: E402

PAGE = ROOT / "tools/launcher/status.html"
SILENT = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
HERE = ROOT / "examples/deploy/observability"
ALERTS = HERE / "alerts.yml"
DASHBOARD = json.loads((HERE / "dashboard.json").read_text())
HAS_PROMETHEUS = all(map(shutil.which, ("prometheus", "promtool")))
METRIC = re.compile(r"\bojs_\w+")
# A worker drains once; that time is reported from then to its end, which a scrape may miss.
REPORTED_AT_THE_END = {"ojs_worker_drain_duration_seconds_bucket", "ojs_worker_shutdown_duration_seconds_bucket"}

# Each rule of alerts.yml: when it is silent, when it fires, and when it is silent again, or "". Then the summary, and what is
# scraped each 30 s. It fires for the labels of the first series alone.
GROUP = 'job="ojs-launcher", instance="l:1", group="kv"'
OTHER = GROUP.replace("kv", "ok")
WORKER = 'job="ojs-worker", instance="w:1"'
COUNTED = ("1m30s", "3m", "25m")  # once the count goes up, for a quarter of an hour


def slow(group, shares):
    """The buckets of 100 shutdowns per scrape: how many took at most 3, 5 and 10 s."""
    labels = f'ojs_launcher_shutdown_seconds_bucket{{{group}, outcome="complete", le="%s"}}'
    return {labels % le: f"0+{share}x120" for le, share in zip(("3", "5", "10", "+Inf"), (*shares, 100))}


RULES = {
    "OjsLauncherGone": (("2m", "3m30s", ""), "No launcher answers at l:1", {
        'up{job="ojs-launcher", instance="l:1"}': "1x3 0x10", 'up{job="ojs-launcher", instance="l:2"}': "1x3 0 1x10"}),
    "OjsLauncherTooFewReady": (("2m30s", "3m30s", ""), "Group kv: only 1 ready, fewer than min_healthy_instances", {
        f"ojs_launcher_ready{{{GROUP}}}": "2x3 1x10", f"ojs_launcher_min_healthy{{{GROUP}}}": "2x20",
        f"ojs_launcher_ready{{{OTHER}}}": "2x20", f"ojs_launcher_min_healthy{{{OTHER}}}": "2x20"}),
    "OjsLauncherDegraded": (("2m30s", "3m30s", ""), "Group kv runs fewer processes than desired: some failed too often", {
        f"ojs_launcher_degraded{{{GROUP}}}": "0x3 1x10", f"ojs_launcher_degraded{{{OTHER}}}": "0x20"}),
    "OjsLauncherReadinessFailures": (COUNTED, "Processes of group kv did not become ready", {
        f"ojs_launcher_readiness_failures_total{{{GROUP}}}": "0x3 1x60",
        f"ojs_launcher_readiness_failures_total{{{OTHER}}}": "7x60"}),
    "OjsLauncherRestarts": (COUNTED, "Processes of group kv exit repeatedly without a request", {
        f"ojs_launcher_restarts_total{{{GROUP}}}": "0x3 5x60", f"ojs_launcher_restarts_total{{{OTHER}}}": "0x3 2x60"}),
    "OjsLauncherRolledBack": (COUNTED, "The rollout of group kv was rolled back", {
        f'ojs_launcher_rollouts_total{{{GROUP}, result="rolled_back"}}': "0x3 1x60",
        f'ojs_launcher_rollouts_total{{{GROUP}, result="done"}}': "0x3 9x60",
        f'ojs_launcher_rollouts_total{{{GROUP}, result="cancelled"}}': "0x3 9x60"}),
    "OjsLauncherKilled": (COUNTED, "Processes of group kv were ended by SIGKILL", {
        f'ojs_launcher_kills_total{{{GROUP}, signal="SIGKILL"}}': "0x3 1x60",
        f'ojs_launcher_kills_total{{{GROUP}, signal="SIGTERM"}}': "0x3 4x60"}),
    "OjsLauncherForced": (COUNTED, "SIGTERM ended processes of group kv: they do not handle it, or did not drain in time", {
        f'ojs_launcher_kills_total{{{GROUP}, signal="SIGTERM"}}': "0x3 1x60",
        f'ojs_launcher_kills_total{{{GROUP}, signal="SIGKILL"}}': "0x3 4x60"}),
    "OjsLauncherShutdownsFailed": (COUNTED, "Processes of group kv failed during a requested shutdown", {
        f'ojs_launcher_shutdown_seconds_count{{{GROUP}, outcome="crashed"}}': "0x3 1x60",
        f'ojs_launcher_shutdown_seconds_count{{{GROUP}, outcome="complete"}}': "0x3 4x60",
        f'ojs_launcher_shutdown_seconds_count{{{GROUP}, outcome="forced"}}': "0x3 4x60"}),
    "OjsLauncherReplacementStuck": (("31m", "32m", ""), "The rollout of group kv has not ended for half an hour", {
        f"ojs_launcher_rollout_in_progress{{{GROUP}}}": "0x3 1x100",
        f"ojs_launcher_rollout_in_progress{{{OTHER}}}": "1x40 0x60"}),
    "OjsLauncherSlowShutdowns": (("10m", "30m", ""), "1 % of shutdowns of group kv take 9s or more", {
        **slow(GROUP, (95, 95, 100)), **slow(OTHER, (100, 100, 100))}),
    "OjsWorkerJobsUnreported": (COUNTED, "Worker w:1 could not report jobs: they will run again", {
        f'ojs_worker_jobs_total{{{WORKER}, outcome="unreported"}}': "0x3 1x60",
        f'ojs_worker_jobs_total{{{WORKER}, outcome="requeued"}}': "0x3 9x60"}),
    "OjsWorkerHeartbeatsFail": (("3m", "8m", ""), "Every heartbeat of worker w:1 fails: the leases of its jobs will expire", {
        f'ojs_worker_heartbeats_total{{{WORKER}, result="failed"}}': "0x4 0+3x40",
        f'ojs_worker_heartbeats_total{{{WORKER}, result="ok"}}': "0+3x4 12x40",
        'ojs_worker_heartbeats_total{job="ojs-worker", instance="w:2", result="ok"}': "0+3x40",
        'ojs_worker_heartbeats_total{job="ojs-worker", instance="w:2", result="failed"}': "0+3x40"}),
    "OjsWorkerForgottenQuiet": (("31m", "32m", ""), "Worker w:1 has been quiet for half an hour: it takes no jobs", {
        f'ojs_worker_phase{{{WORKER}, phase="quiet"}}': "0x3 1x100", f'ojs_worker_phase{{{WORKER}, phase="running"}}': "1x3 0x100",
        'ojs_worker_phase{job="ojs-worker", instance="w:2", phase="quiet"}': "1x40 0x60"}),
}
SUMMED_UP = {"OjsLauncherSlowShutdowns": {"job", "group"}}  # the labels that a rule keeps, if not all


def rule_test(alert):
    """As promtool reads it; severity and runbook as they are in alerts.yml."""
    (silent, fires, again), summary, series = RULES[alert]
    block = ALERTS.read_text().split(f"- alert: {alert}\n")[1].split("- alert:")[0]
    labels = dict(re.findall(r'(\w+)="([^"]*)"', next(iter(series))))
    labels = {name: labels[name] for name in SUMMED_UP.get(alert, labels)}
    labels["severity"] = re.search(r"severity: (\w+)", block)[1]
    runbook = re.search(r"runbook_url: (\S+)", block)[1]
    fired = [{"exp_labels": labels, "exp_annotations": {"summary": summary, "runbook_url": runbook}}]
    return {"name": alert, "interval": "30s",
            "input_series": [{"series": each, "values": values} for each, values in series.items()],
            "alert_rule_test": [{"eval_time": at, "alertname": alert, "exp_alerts": expected}
                                for at, expected in ((silent, []), (fires, fired), (again, [])) if at]}


def panels():
    return [each for each in DASHBOARD["panels"] if each["type"] != "row"]


def expressions():
    """Every query of the dashboard, for all groups."""
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [each.replace("$group", ".*").replace("$__rate_interval", "10s") for each in found]


class Files(unittest.TestCase):
    def test_the_status_page_loads_no_other_file_and_stores_no_token(self):
        page = PAGE.read_text()
        self.assertNotRegex(page, r"https?://|src=|href=\"(?!data:)|@import|innerHTML|localStorage|sessionStorage|cookie")


@unittest.skipUnless(HAS_PROMETHEUS, "prometheus and promtool are not installed")
class Rules(unittest.TestCase):
    def promtool(self, *words):
        done = subprocess.run(["promtool", *words], cwd=HERE, capture_output=True, text=True, timeout=GUARD)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_promtool_accepts_rules_and_configuration(self):
        self.promtool("check", "rules", "--lint-fatal", ALERTS)
        self.promtool("check", "config", HERE / "prometheus.yml")

    def test_each_alert_fires_at_its_threshold_and_not_before(self):
        self.assertEqual(set(re.findall(r"- alert: (\w+)", ALERTS.read_text())), set(RULES))
        with tempfile.TemporaryDirectory() as folder:
            tests = Path(folder) / "tests.yml"
            tests.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "30s",
                                         "tests": [rule_test(each) for each in RULES]}))
            self.promtool("test", "rules", tests)


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
        with self.log.open("wb") as log:
            command = ["run", "--config", self.config, "--admin", "127.0.0.1:0", "--status-page", PAGE]
            self.process = subprocess.Popen([BUILD / "launcher", *command], **SILENT, stderr=log)
        self.address = eventually(self.listening, lambda: self.log.read_text())

    def write(self, *groups):
        self.config.write_text(json.dumps({"process_groups": list(groups)}))

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

    def remove(self):
        """Twice SIGTERM, so that what does not end soon is forced."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(1)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGTERM)
                self.process.wait(GUARD)
        shutil.rmtree(self.folder, ignore_errors=True)


class Worker:
    """One that works on a spool, with its health address."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="ojs-observed-"))
        self.port = Ports()
        self.address = f"127.0.0.1:{self.port.first}"
        self.environment = {**os.environ, "OJS_URL": f"spool:{self.folder}/spool", "OJS_HEALTH_ADDR": self.address,
                            "OJS_HEARTBEAT_INTERVAL": "1s"}
        self.process = subprocess.Popen([BUILD / "worker"], env=self.environment, **SILENT, stderr=subprocess.DEVNULL)

    def enqueue(self, *words):
        command = [BUILD / "worker", "--enqueue", *words]
        subprocess.run(command, env=self.environment, stdout=subprocess.DEVNULL, timeout=GUARD, check=True)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(GUARD)
        shutil.rmtree(self.folder, ignore_errors=True)


class Prometheus:
    """With the configuration of the examples, but for its pace and whom it scrapes."""

    def __init__(self, launcher, worker):
        self.folder = Path(tempfile.mkdtemp(prefix="ojs-prometheus-"))
        config = (HERE / "prometheus.yml").read_text()
        for old, new in (("interval: 15s", "interval: 200ms"), ("[alerts.yml]", f"[{ALERTS}]"),
                         ("127.0.0.1:9464", launcher), ("127.0.0.1:8081", worker)):
            if old not in config:
                raise AssertionError(f"prometheus.yml has no {old}")
            config = config.replace(old, new)
        (self.folder / "prometheus.yml").write_text(config)
        self.began = time.time()
        self.port = Ports()
        self.url = f"http://127.0.0.1:{self.port.first}"
        self.log = self.folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={self.folder}/prometheus.yml", f"--storage.tsdb.path={self.folder}/data",
                 f"--web.listen-address={self.url[7:]}"], **SILENT, stderr=log)
        eventually(self.is_ready, lambda: self.log.read_text())

    def is_ready(self):
        if self.process.poll() is not None:
            raise AssertionError(self.log.read_text())
        try:
            return urllib.request.urlopen(self.url + "/-/ready", timeout=GUARD).status == 200
        except OSError:
            return False

    def ask(self, path, **parameters):
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=GUARD) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refused:
            raise AssertionError(f"{parameters or path}: {refused.read().decode()}") from None

    def values(self, expression):
        """What it gave at any time since the start, without what is no number."""
        found = self.ask("query_range", query=expression, start=self.began, end=time.time(), step="500ms")["result"]
        return [v for series in found for v in (float(text) for _, text in series["values"]) if math.isfinite(v)]

    def stop(self):
        self.process.terminate()
        self.process.wait(GUARD)
        shutil.rmtree(self.folder, ignore_errors=True)


@unittest.skipUnless(HAS_PROMETHEUS, "prometheus and promtool are not installed")
class Scraped(unittest.TestCase):
    """A fleet to which everything happens that is counted."""

    @classmethod
    def setUpClass(cls):
        quick = {"grace_period": "300ms", "max_duration": "1s", "poll_interval": "50ms", "kill_delay": "200ms"}
        once = {"initial_backoff": "100ms", "max_backoff": "100ms", "max_restarts": 1}
        cls.launcher = Launcher(
            runners("kv", 2, ["--work-duration", "20ms"]),
            runners("hang", 1, ["--behavior", "hang"], shutdown=quick),
            runners("crash", 1, ["--behavior", "crash"]),
            runners("deaf", 1, command=["/bin/sleep", "1000"], has_coordinator=False),
            runners("more", 1, ["--behavior", "request-more"], shutdown={**quick, "max_duration": "8s"}),
            runners("frail", 1, restart=once),
        )
        cls.addClassCleanup(cls.launcher.remove)
        cls.worker = Worker()
        cls.addClassCleanup(cls.worker.stop)
        cls.prometheus = Prometheus(cls.launcher.address, cls.worker.address)
        cls.addClassCleanup(cls.prometheus.stop)
        cls.await_value("sum(ojs_launcher_ready)", 7)
        cls.await_value('ojs_worker_phase{phase="running"}', 1)
        cls.make_things_happen()

    @classmethod
    def await_value(cls, expression, value):
        eventually(lambda: value in cls.prometheus.values(expression), f"{expression} is {value}")

    @classmethod
    def make_things_happen(cls):
        tool = cls.launcher.tool
        for each in ("hang", "crash", "deaf", "more"):
            tool("stop", f"{each}-1", "--no-wait")
        for _ in range(3):
            cls.worker.enqueue("noop")
            cls.worker.enqueue("sleep", "3000")  # several scrapes long
        cls.worker.enqueue("fail")
        tool("roll", "kv")
        cls.launcher.write(runners("kv", 2, ["--never-ready"], health_check_timeout="500ms"))
        tool("roll", "kv", status=1)
        cls.kill("frail-1")
        eventually(lambda: "frail-2" in tool("status", "frail"), "frail is started again")
        cls.await_value('ojs_launcher_ready{group="frail"} and ojs_launcher_restarts_total == 1', 1)
        cls.kill("frail-2")
        cls.await_value('ojs_launcher_degraded{group="frail"}', 1)

    @classmethod
    def kill(cls, process_id):
        ask = {"processId": process_id}
        url = f"http://{cls.launcher.address}/prism.interfaces.ProcessManagerInterface/GetProcessStatus"
        request = urllib.request.Request(url, json.dumps(ask).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=GUARD) as answer:
            os.kill(json.load(answer)["pid"], signal.SIGKILL)

    def test_every_query_of_the_dashboard_returns_data(self):
        for expression in expressions():
            with self.subTest(expression):
                if REPORTED_AT_THE_END & set(METRIC.findall(expression)):
                    self.prometheus.values(expression)  # it is one
                    continue
                eventually(lambda: any(v > 0 for v in self.prometheus.values(expression)), "gives data above 0")

    def test_every_metric_in_rules_and_dashboard_is_scraped(self):
        names = set(self.prometheus.ask("label/__name__/values"))
        asked = set(METRIC.findall(" ".join(expressions()) + ALERTS.read_text()))
        self.assertGreater(len(asked), 20)
        self.assertEqual(asked - names, set())

    def test_metrics_pages_pass_promtool(self):
        for address in self.launcher.address, self.worker.address:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=GUARD) as page:
                done = subprocess.run(["promtool", "check", "metrics"], input=page.read(), capture_output=True, timeout=GUARD)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, b"", b""), address)


if __name__ == "__main__":
    unittest.main()
