#!/usr/bin/env python3
"""examples/deploy/observability against a Prometheus that scrapes a launcher and a worker to which things happen. `make
observability-test` runs this. OJS_TEST_BUILD: the folder with launcher, lifecycle_runner and worker; default build. Without
prometheus and promtool what needs them is skipped."""

import calendar
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from support import BUILD, GUARD, ROOT, SILENT, Launcher, eventually, runners

HERE = ROOT / "examples/deploy/observability"
ALERTS = HERE / "alerts.yml"
UNIT_TESTS = Path(__file__).with_name("alerts_test.yml")
DASHBOARD = json.loads((HERE / "dashboard.json").read_text())
HAS_PROMETHEUS = all(map(shutil.which, ("prometheus", "promtool")))
METRIC = re.compile(r"\bojs_\w+")
# A worker drains once; that time is reported from then to its end, which a scrape may miss.
REPORTED_AT_THE_END = {"ojs_worker_drain_duration_seconds_bucket", "ojs_worker_shutdown_duration_seconds_bucket"}
# What fires as soon as what is done to the launcher below has happened; all others want it to last.
FIRE_AT_ONCE = {"OjsLauncherForced", "OjsLauncherKilled", "OjsLauncherReadinessFailures", "OjsLauncherRolledBack",
                "OjsLauncherShutdownsFailed"}


def panels():
    return [each for each in DASHBOARD["panels"] if each["type"] != "row"]


def expressions():
    """Every query of the dashboard, for all groups."""
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [each.replace("$group", ".*").replace("$__rate_interval", "10s") for each in found]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as held:
        return held.getsockname()[1]


def anchors(document):
    """Of its headings, as they are linked to."""
    heads = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


class Files(unittest.TestCase):
    def test_every_alert_has_a_runbook_that_is_there(self):
        text = ALERTS.read_text()
        links = re.findall(r"runbook_url: (\S+)#(\S+)", text)
        self.assertEqual(len(links), len(re.findall(r"- alert:", text)))
        for document, anchor in links:
            self.assertIn(anchor, anchors(ROOT / document), document)

    def test_every_alert_has_a_test_in_which_it_speaks_and_one_in_which_it_is_silent(self):
        checks = re.findall(r"alertname: (\w+)\n        exp_alerts:( \[\])?", UNIT_TESTS.read_text())
        for alert in re.findall(r"- alert: (\w+)", ALERTS.read_text()):
            self.assertEqual({"", " []"}, {silent for name, silent in checks if name == alert}, alert)

    def test_the_dashboard_is_one_that_can_be_read(self):
        ids = [each["id"] for each in DASHBOARD["panels"]]
        cells = [(x, y) for at in (each["gridPos"] for each in DASHBOARD["panels"])
                 for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])]
        for each in (ids, cells):
            self.assertEqual(len(each), len(set(each)))
        self.assertLess(max(x for x, _ in cells), 24)
        for each in panels():
            self.assertTrue(each["title"] and each["description"] and each["targets"], each["title"])
            self.assertEqual(each["datasource"]["uid"], "${datasource}")


@unittest.skipUnless(HAS_PROMETHEUS, "prometheus and promtool are not installed")
class Rules(unittest.TestCase):
    def test_promtool_accepts_rules_and_configuration_and_each_rule_speaks_when_it_should(self):
        for words in (("check", "rules", "--lint-fatal", ALERTS), ("check", "config", HERE / "prometheus.yml"),
                      ("test", "rules", UNIT_TESTS)):
            done = subprocess.run(["promtool", *words], cwd=HERE, capture_output=True, text=True, timeout=GUARD)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class Worker:
    """One that works on a spool, with its health address."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="ojs-observed-"))
        self.address = f"127.0.0.1:{free_port()}"
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
        self.url = f"http://127.0.0.1:{free_port()}"
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

    def firing(self):
        return {each["labels"]["alertname"] for each in self.ask("alerts")["alerts"] if each["state"] == "firing"}

    def judged_since(self, moment):
        """Whether every rule was evaluated later than that."""
        times = [each["lastEvaluation"][:19] for group in self.ask("rules")["groups"] for each in group["rules"]]
        return all(calendar.timegm(time.strptime(each, "%Y-%m-%dT%H:%M:%S")) > moment for each in times)

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
        seen = time.time()
        eventually(lambda: cls.prometheus.judged_since(seen), "every rule is evaluated while nothing has happened")
        cls.at_first = cls.prometheus.firing()
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

    def test_every_query_of_the_dashboard_gives_data(self):
        for expression in expressions():
            with self.subTest(expression):
                if REPORTED_AT_THE_END & set(METRIC.findall(expression)):
                    self.prometheus.values(expression)  # it is one
                    continue
                eventually(lambda: any(v > 0 for v in self.prometheus.values(expression)), "gives data above 0")

    def test_what_is_asked_for_is_scraped(self):
        names = set(self.prometheus.ask("label/__name__/values"))
        asked = set(METRIC.findall(" ".join(expressions()) + ALERTS.read_text()))
        self.assertGreater(len(asked), 20)
        self.assertEqual(asked - names, set())

    def test_every_count_of_the_launcher_is_on_the_dashboard(self):
        with urllib.request.urlopen(f"http://{self.launcher.address}/metrics", timeout=GUARD) as answer:
            families = set(re.findall(r"^# TYPE (ojs_launcher_\w+)", answer.read().decode(), re.MULTILINE))
        shown = {re.sub(r"_(bucket|count|sum)$", "", name) for name in METRIC.findall(" ".join(expressions()))}
        self.assertEqual(families - shown, {"ojs_launcher_build_info"})

    def test_groups_can_be_chosen(self):
        query = next(each["query"] for each in DASHBOARD["templating"]["list"] if each["name"] == "group")
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups()
        found = self.prometheus.ask(f"label/{label}/values", **{"match[]": metric})
        self.assertEqual(set(found), {"kv", "hang", "crash", "deaf", "more", "frail"})

    def test_rules_are_evaluated_and_speak_of_what_happened_alone(self):
        rules = [each for group in self.prometheus.ask("rules")["groups"] for each in group["rules"]]
        self.assertEqual({(each["health"], each.get("lastError", "")) for each in rules}, {("ok", "")})
        self.assertEqual(self.at_first, set())
        eventually(lambda: FIRE_AT_ONCE <= self.prometheus.firing(), lambda: f"{self.prometheus.firing()}")
        # Their time may have come as well, as this may take a minute.
        later = {"OjsLauncherDegraded", "OjsLauncherTooFewReady"}
        self.assertEqual(self.prometheus.firing() - later, FIRE_AT_ONCE)


if __name__ == "__main__":
    unittest.main()
