"""The files of examples/deploy: their numbers add up, and what they name exists."""

import functools
import json
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

try:
    import yaml
except ImportError:
    yaml = None

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "examples/deploy"
UNITS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "": 1}
REPORTING = 5  # what a worker needs after its grace period, in seconds

COMPOSE = "docker-compose.yml"
WORKER = "kubernetes/deployment.yaml"
ECS = "ecs-task-definition.json"  # without comments: the reasons are in docs/deploying.md
SIDECAR = "kubernetes/proxy-sidecar.yaml"
SPOT, NORMAL = CONTROLLERS = ["kubernetes/controller-spot.yaml", "kubernetes/controller-normal.yaml"]
DEPLOYMENTS = [WORKER, *CONTROLLERS]
DOCKERFILES = {"plain.Dockerfile": "worker", "Dockerfile": "worker", "controller.Dockerfile": "controller"}  # and its program
BACKENDS = "backends/docker-compose.yml"
# How a file says when SIGKILL comes.
GRANTS = {
    COMPOSE: r"^ +stop_grace_period: (\S+)$",
    **dict.fromkeys(DEPLOYMENTS, r"^ +terminationGracePeriodSeconds: (\d+)$"),
    "ojs-worker.service": r"^TimeoutStopSec=(\S+)$",
    "ojs-worker.nomad.hcl": r'^ +kill_timeout = "(\S+)"$',
    ECS: r'^ +"stopTimeout": (\d+),$',
}
# How a file of a worker says how much memory that may have.
MEMORY = {
    COMPOSE: r"^ +mem_limit: (\d+)m$",
    WORKER: r"^ +limits: \{memory: (\d+)Mi,",
    "ojs-worker.service": r"^MemoryMax=(\d+)M$",
    "ojs-worker.nomad.hcl": r"^ +memory = (\d+)$",
}
WORKERS = [*MEMORY, ECS]
FILES = [*GRANTS, SIDECAR, BACKENDS, *DOCKERFILES]


def for_each(names):
    """Calls the test with each of these files."""
    def decorated(test):
        @functools.wraps(test)
        def run(self):
            for name in names:
                with self.subTest(name):
                    test(self, name)
        return run
    return decorated


def read(name):
    return (DEPLOY / name).read_text()


def without_comments(name):
    return re.sub(r"(?m)^\s*#.*\n", "", read(name))


def seconds(text):
    parts = re.findall(r"(\d+)([a-z]*)", text)
    assert parts and "".join(number + unit for number, unit in parts) == text, text
    return sum(int(number) * UNITS[unit] for number, unit in parts)


def granted(name):
    return seconds(re.search(GRANTS[name], read(name), re.MULTILINE).group(1))


def setting(name, variable):
    """The value of an environment variable in any of the four notations; None if it is not set."""
    found = re.search(rf'\b{variable}(?:=|: | = |"?, "?value"?: )"?([^"\s}}]+)', without_comments(name))
    return found and found.group(1)


def duration(name, variable, fallback=None):
    value = setting(name, variable)
    return fallback if value is None else seconds(value)


class Budgets(unittest.TestCase):
    @for_each(WORKERS)
    # [GS 6.3 (a)] [GS 8.2 (b)]
    def test_the_granted_stop_time_covers_drain_and_reports(self, name):
        spent = duration(name, "OJS_PRESTOP_DELAY", 0) + duration(name, "OJS_SHUTDOWN_GRACE_PERIOD")
        # The specification's recommendation: 10 s more than the grace period.
        self.assertGreaterEqual(granted(name), spent + max(10, REPORTING, duration(name, "OJS_STOP_TIMEOUT", 5)))

    @for_each(WORKERS)
    def test_ojs_container_grace_period_equals_the_granted_time(self, name):
        self.assertEqual(duration(name, "OJS_CONTAINER_GRACE_PERIOD"), granted(name))

    def test_fargate_and_spot_stop_times_are_within_the_platforms_maximum(self):
        for name in ECS, SPOT:
            self.assertLessEqual(granted(name), 120)

    # [Spot best practice 5]
    def test_the_granted_stop_time_covers_the_controllers_grace_period(self):
        config = json.loads(read("kubernetes/controller-config.yaml").split("controller.json: |\n")[1].split("---")[0])
        self.assertGreaterEqual(granted(NORMAL), seconds(config["termination_grace_period"]) + REPORTING + 10)
        self.assertEqual(seconds(config["container_grace_period"]), granted(NORMAL))

    @for_each(WORKERS)
    # [GS 8.1 (b)]
    def test_prestop_delay_is_set_only_with_a_prestop_hook(self, name):
        self.assertEqual(duration(name, "OJS_PRESTOP_DELAY", 0) > 0, "preStop:" in without_comments(name))

    @for_each(MEMORY)
    def test_the_memory_limit_covers_concurrency_as_the_comment_computes(self, name):
        comment = re.sub(r"\s*\n\s*# ", " ", read(name))
        own, job, total = map(int, re.search(r"(\d+) Mi?B? and (\d+) Mi?B? for each job.*? are (\d+)[;:.]", comment).groups())
        self.assertEqual(own + job * int(setting(name, "OJS_CONCURRENCY") or 10), total)
        self.assertLessEqual(total, int(re.search(MEMORY[name], read(name), re.MULTILINE).group(1)))

    @for_each(MEMORY)
    # [GS 6.2]
    def test_the_grace_period_follows_the_formula_of_the_specification(self, name):
        parts = re.search(r"longest job \((\d+)\), a heartbeat \((\d+)\), and a margin \((\d+)\)", read(name))
        job, heartbeat, margin = map(int, parts.groups())
        self.assertEqual(duration(name, "OJS_SHUTDOWN_GRACE_PERIOD"), job + heartbeat + margin)
        self.assertEqual(duration(name, "OJS_HEARTBEAT_INTERVAL"), heartbeat)


def variables_read():
    """The names in literals that are nothing but names: of several in one the first that is set counts."""
    headers = "".join((ROOT / name).read_text() for name in ("ojs_shutdown.hpp", "extensions/ojs_ops.hpp"))
    literals = re.findall(r'"(OJS_[A-Z_]+(?: [A-Z_]+)*)"', headers)
    return {name for literal in literals for name in literal.split()}


class Names(unittest.TestCase):
    @for_each(WORKERS)
    def test_deployments_set_only_variables_that_the_worker_reads(self, name):
        self.assertLessEqual(set(re.findall(r"\bOJS_[A-Z_]+\b", without_comments(name))), variables_read())

    def test_deployments_use_only_flags_that_the_programs_have(self):
        for program in "worker", "controller":
            known = set(re.findall(r"--[a-z-]+", (ROOT / f"tools/{program}.cpp").read_text()))
            named = {flag for name in FILES for flag in re.findall(rf"\b{program}\"?,? \"?(--[a-z-]+)", read(name))}
            self.assertTrue(named and named <= known, named - known)

    @for_each(FILES)
    # [GS 4.3 (a)]
    def test_no_deployment_starts_a_program_through_a_shell(self, name):
        started = re.findall(r"(?im)^\s*-?\s*(?:ExecStart=|command:|entrypoint).*", without_comments(name))
        self.assertNotRegex("\n".join(started), r"\bsh\b")

    @for_each([COMPOSE, "ojs-worker.nomad.hcl", ECS, *DEPLOYMENTS])
    def test_image_tags_equal_the_version_of_the_header(self, name):
        version = re.search(r'OJS_SHUTDOWN_VERSION "(.*)"', (ROOT / "ojs_shutdown.hpp").read_text()).group(1)
        images = re.findall(r'(?m)^[\s-]*"?image"?(?:: | = )"?([^\s",]+)"?,?$', without_comments(name))
        self.assertEqual(set(images), {f"ojs-{'controller' if name in CONTROLLERS else 'worker'}:{version}"})

    def test_the_backends_do_not_start_without_their_secrets(self):
        for name in "POSTGRES_PASSWORD", "OJS_API_KEY":
            self.assertIn("${" + name + ":?", read(BACKENDS))
        self.assertNotRegex(read(BACKENDS), r"(PASSWORD|TOKEN|KEY):?-")


def included_by(path):
    """The names of the files of ours that it includes, and of those that these include."""
    out = set()
    for name in re.findall(r'(?m)^#include "(.*)"$', path.read_text()):
        found = next(ROOT / folder / name for folder in ("examples", "tools", "extensions", "") if (ROOT / folder / name).exists())
        out |= {name} | included_by(found)
    return out


class Dockerfile(unittest.TestCase):
    @for_each(DOCKERFILES)
    def test_a_dockerfile_copies_every_file_that_it_compiles(self, name):
        lines = re.sub(r" *\\\n\s*", " ", without_comments(name))
        copied = [source for words in re.findall(r"(?m)^COPY ([^-].*) \S+$", lines) for source in words.split()]
        (compiled,) = re.findall(rf"(?m)^.* -o {DOCKERFILES[name]}$", lines)
        needed = {*re.findall(r"\S+\.(?:cpp|S)", compiled), *included_by(ROOT / f"tools/{DOCKERFILES[name]}.cpp")}
        self.assertEqual(needed, {Path(each).name for each in copied})
        self.assertEqual([each for each in copied if not (ROOT / each).is_file()], [])

    def test_make_dist_and_the_dockerfile_use_the_same_flags_and_compiler(self):
        packaging = (ROOT / "packaging/packaging.mk").read_text().replace("\\\n", "")
        flags = [re.search(rf"(?m)^{name} := (.*?)(?:  #.*)?$", packaging).group(1) for name in ("IMAGE", r"image\.worker")]
        said = without_comments("Dockerfile").split()
        self.assertEqual([flag for flag in " ".join(flags).split() if flag.startswith("-") and flag not in said], [])
        self.assertIn("ziglang==" + re.search(r"(?m)^ZIG_VERSION := (.*)", packaging).group(1), said)


@unittest.skipUnless(yaml, "there is no yaml module (Debian: python3-yaml)")
class Kubernetes(unittest.TestCase):
    def setUp(self):
        files = (DEPLOY / "kubernetes").glob("*.yaml")
        parsed = [each for path in files for each in yaml.safe_load_all(path.read_text())]
        self.objects = [each for each in parsed if "kind" in each]  # the sidecar is a patch
        self.pods = {each["metadata"]["name"]: each["spec"]["template"] for each in self.of_kind("Deployment")}

    def of_kind(self, kind):
        return [each for each in self.objects if each["kind"] == kind]

    def test_selectors_of_policies_and_budgets_match_a_pod(self):
        labels = [pod["metadata"]["labels"] for pod in self.pods.values()]
        self.assertCountEqual([each["spec"]["selector"]["matchLabels"] for each in self.of_kind("PodDisruptionBudget")], labels)
        for policy in self.of_kind("NetworkPolicy"):
            selector = policy["spec"]["podSelector"]
            rules = selector.get("matchExpressions", [])
            selected = [{rule["key"]: value} for rule in rules for value in rule["values"]] or [selector["matchLabels"]]
            for each in selected:
                self.assertIn(each, labels)

    # [GS 8.1 (d)]
    def test_probes_and_hook_use_the_workers_port_paths_and_command(self):
        (worker,) = self.pods["ojs-worker"]["spec"]["containers"]
        self.assertEqual({str}, {type(each["value"]) for each in worker["env"] if "value" in each}, "else kubectl refuses it")
        (port,) = worker["ports"]
        self.assertEqual(setting(WORKER, "OJS_HEALTH_ADDR"), f"[::]:{port['containerPort']}")
        for probe, path in [("readinessProbe", "/readyz"), ("livenessProbe", "/livez")]:
            self.assertEqual(worker[probe]["httpGet"], {"path": path, "port": port["name"]})
        hook = worker["lifecycle"]["preStop"]["exec"]["command"]
        self.assertEqual(hook, [*worker["command"], "--signal", "quiet", "--wait"])

    # [Spot same configuration everywhere]
    def test_both_controllers_mount_the_same_configmap(self):
        (config,) = self.of_kind("ConfigMap")
        for name in "ojs-controller", "ojs-controller-spot":
            volumes = [each["configMap"]["name"] for each in self.pods[name]["spec"]["volumes"] if "configMap" in each]
            self.assertEqual(volumes, [config["metadata"]["name"]])


class Systemd(unittest.TestCase):
    @unittest.skipUnless(shutil.which("systemd-analyze"), "there is no systemd-analyze")
    @for_each(["ojs-worker.service", "ojs-launcher.service"])
    def test_systemd_analyze_verify_accepts_the_units(self, name):
        with tempfile.TemporaryDirectory() as folder:
            unit = Path(folder) / name
            # It looks whether the program is there.
            unit.write_text(re.sub(r"(?m)^ExecStart=.*", "ExecStart=" + shutil.which("true"), read(name)))
            done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, [line for line in done.stderr.splitlines() if name in line]), (0, []), done.stderr)

    def test_the_worker_changes_no_priority_policy_or_limit(self):
        """SystemCallFilter=~@resources of its unit would end it."""
        header = (ROOT / "ojs_shutdown.hpp").read_text() + (ROOT / "extensions/ojs_ops.hpp").read_text()
        self.assertEqual([], re.findall(r"\b\w*(?:nice|setpriority|setrlimit|setsched|sched_set|setaffinity|setinheritsched)\w*\(", header))


if __name__ == "__main__":
    unittest.main()
