"""The files of examples/deploy: that their numbers add up, and that they are what their comments say."""

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
KEPT_LOG = 50 << 20  # what the kubelet keeps of a container's log by default: 5 files of 10 Mi
REPORTING = 5  # what a worker needs after its grace period, in seconds

COMPOSE = "docker-compose.yml"
WORKER = "kubernetes/deployment.yaml"
ECS = "ecs-task-definition.json"  # without comments: the reasons are in docs/operating.md
SIDECAR = "kubernetes/proxy-sidecar.yaml"
CONTROLLER_CONFIG = "kubernetes/controller-config.yaml"
SPOT, NORMAL = CONTROLLERS = ["kubernetes/controller-spot.yaml", "kubernetes/controller-normal.yaml"]
DEPLOYMENTS = [WORKER, *CONTROLLERS]
DOCKERFILES = {"plain.Dockerfile": "worker", "Dockerfile": "worker", "controller.Dockerfile": "controller"}  # and its program
BUDGETS, NETWORK = "kubernetes/disruption-budget.yaml", "kubernetes/network-policy.yaml"
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
FILES = [*GRANTS, SIDECAR, BACKENDS, *DOCKERFILES, BUDGETS, NETWORK, CONTROLLER_CONFIG]


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


def size(text):
    number, unit = re.fullmatch(r"(\d+)(Ki|Mi|Gi)", text).groups()
    return int(number) << {"Ki": 10, "Mi": 20, "Gi": 30}[unit]


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
    def test_what_is_granted_holds_all_that_is_spent(self, name):
        spent = duration(name, "OJS_PRESTOP_DELAY", 0) + duration(name, "OJS_SHUTDOWN_GRACE_PERIOD")
        # The specification's recommendation: 10 s more than the grace period.
        self.assertGreaterEqual(granted(name), spent + max(10, REPORTING, duration(name, "OJS_STOP_TIMEOUT", 5)))

    @for_each(WORKERS)
    def test_the_worker_is_told_what_is_granted(self, name):
        self.assertEqual(duration(name, "OJS_CONTAINER_GRACE_PERIOD"), granted(name))

    def test_fargate_grants_no_more(self):
        self.assertLessEqual(granted(ECS), 120)

    @for_each(WORKERS)
    # [GS 8.1 (b)]
    def test_only_where_there_is_a_hook_is_there_time_for_it(self, name):
        self.assertEqual(duration(name, "OJS_PRESTOP_DELAY", 0) > 0, "preStop:" in without_comments(name))

    @for_each([*MEMORY, *CONTROLLERS])
    def test_the_sums_in_the_comments(self, name):
        rows = re.findall(r"(?m)^# +([+=]?) +(\d+)  ?\S", read(name))
        self.assertEqual([sign for sign, _ in rows], ["", *["+"] * (len(rows) - 2), "="])
        numbers = [int(number) for _, number in rows]
        self.assertEqual([sum(numbers[:-1]), granted(name)], [numbers[-1]] * 2)
        if name in WORKERS:
            self.assertIn(duration(name, "OJS_SHUTDOWN_GRACE_PERIOD"), numbers)

    @for_each(MEMORY)
    def test_the_memory_granted_is_enough_for_all_jobs_as_the_comment_has_it(self, name):
        comment = re.sub(r"\s*\n\s*# ", " ", read(name))
        own, job, total = map(int, re.search(r"(\d+) Mi?B? and (\d+) Mi?B? for each job.*? are (\d+)[;:.]", comment).groups())
        self.assertEqual(own + job * int(setting(name, "OJS_CONCURRENCY") or 10), total)
        self.assertLessEqual(total, int(re.search(MEMORY[name], read(name), re.MULTILINE).group(1)))

    @for_each(MEMORY)
    # [GS 6.2]
    def test_the_grace_period_is_the_formula_of_the_specification(self, name):
        parts = re.search(r"longest job \((\d+)\), a heartbeat \((\d+)\), and a margin \((\d+)\)", read(name))
        job, heartbeat, margin = map(int, parts.groups())
        self.assertEqual(duration(name, "OJS_SHUTDOWN_GRACE_PERIOD"), job + heartbeat + margin)
        self.assertEqual(duration(name, "OJS_HEARTBEAT_INTERVAL"), heartbeat)


def variables_read():
    """The names in literals that are nothing but names: of several in one the first that is set counts."""
    literals = re.findall(r'"(OJS_[A-Z_]+(?: [A-Z_]+)*)"', (ROOT / "ojs_shutdown.hpp").read_text())
    return {name for literal in literals for name in literal.split()}


class Names(unittest.TestCase):
    @for_each(WORKERS)
    def test_every_variable_is_one_the_worker_reads(self, name):
        self.assertLessEqual(set(re.findall(r"\bOJS_[A-Z_]+\b", without_comments(name))), variables_read())

    def test_every_flag_is_one_the_program_has(self):
        for program in "worker", "controller":
            known = set(re.findall(r"--[a-z-]+", (ROOT / f"tools/{program}.cpp").read_text()))
            named = {flag for name in FILES for flag in re.findall(rf"\b{program}\"?,? \"?(--[a-z-]+)", read(name))}
            self.assertTrue(named and named <= known, named - known)

    @for_each(FILES)
    # [GS 4.3 (a)]
    def test_no_shell_runs_anything(self, name):
        started = re.findall(r"(?im)^\s*-?\s*(?:ExecStart=|command:|entrypoint).*", without_comments(name))
        self.assertNotRegex("\n".join(started), r"\bsh\b")

    @for_each(FILES)
    def test_no_registry_is_named(self, name):
        for image in re.findall(r"(?m)^\s*(?:FROM|image:) (?:--platform=\S+ )?(\S+)", without_comments(name)):
            self.assertRegex(image, r"^(?!.*:latest)([a-z-]+(:[a-z0-9.]+)?(@sha256:[0-9a-f]{64})?|\$\{[A-Z_]+:\?an)$")

    @for_each([COMPOSE, "ojs-worker.nomad.hcl", ECS, *DEPLOYMENTS])
    def test_what_is_run_is_a_version(self, name):
        version = re.search(r'OJS_SHUTDOWN_VERSION "(.*)"', (ROOT / "ojs_shutdown.hpp").read_text()).group(1)
        images = re.findall(r'(?m)^[\s-]*"?image"?(?:: | = )"?([^\s",]+)"?,?$', without_comments(name))
        self.assertEqual(set(images), {f"ojs-{'controller' if name in CONTROLLERS else 'worker'}:{version}"})

    def test_ecs_runs_the_same_worker_as_compose(self):
        (worker,) = json.loads(read(ECS))["containerDefinitions"]
        self.assertEqual((worker["entryPoint"], worker["readonlyRootFilesystem"]), (["/worker"], True))
        for variable in {each["name"] for each in worker["environment"]} - {"OJS_URL"}:
            self.assertEqual(setting(ECS, variable), setting(COMPOSE, variable))


class Controller(unittest.TestCase):
    """The two ways to run tools/controller.cpp, which differ in who writes the termination-mode file."""

    def setUp(self):
        self.config = json.loads(read(CONTROLLER_CONFIG).split("controller.json: |\n")[1].split("---")[0])

    def test_every_key_is_one_the_controller_reads(self):
        source = (ROOT / "tools/controller.cpp").read_text()
        for key in self.config:
            self.assertIn(f'{{"{key}"', source)

    def test_it_is_the_configuration_of_the_guide(self):
        guide = {"retry_delays": [0, 1], "termination_grace_period": "3550s", "child_process_shutdown_timeout": "10s"}
        self.assertLessEqual(guide.items(), self.config.items())
        self.assertIn("{job}", self.config["command"])

    # [Spot best practice 5]
    def test_what_is_granted_holds_the_grace_period(self):
        grace = seconds(self.config["termination_grace_period"])
        self.assertGreaterEqual(granted(NORMAL), grace + REPORTING + 10)
        self.assertEqual(seconds(self.config["container_grace_period"]), granted(NORMAL))
        self.assertLessEqual(granted(SPOT), 120)  # a reclaim takes a second; the machine is gone after this

    def test_only_the_normal_one_is_marked_and_only_the_spot_one_has_the_hook(self):
        self.assertIn('["/controller", "--mark-normal"]', without_comments(NORMAL))
        self.assertNotIn("preStop", without_comments(NORMAL))
        self.assertIn('["/controller", "--reclaim"]', without_comments(SPOT))
        self.assertNotIn("--mark-normal", without_comments(SPOT))


def included_by(path):
    """The names of the files of ours that it includes, and of those that these include."""
    out = set()
    for name in re.findall(r'(?m)^#include "(.*)"$', path.read_text()):
        found = next(ROOT / folder / name for folder in ("examples", "tools", "extensions", "") if (ROOT / folder / name).exists())
        out |= {name} | included_by(found)
    return out


def dockerfile(name):
    """What it copies to build the program, the command that compiles it, and the last image as a dictionary."""
    joined = re.sub(r" *\\\n\s*", " ", without_comments(name))
    build, image = joined.rsplit("\nFROM ", 1)
    copied = [source for words in re.findall(r"(?m)^COPY (.*) \S+$", build) for source in words.split()]
    (compiled,) = re.findall(rf"(?m)^.* -o {DOCKERFILES[name]}$", build)
    return copied, compiled, dict(line.split(" ", 1) for line in f"FROM {image}".splitlines())


class Dockerfile(unittest.TestCase):
    @for_each(DOCKERFILES)
    def test_started_without_a_shell_as_nobody_and_stopped_by_sigterm(self, name):
        """And the image is empty but for the program."""
        program = DOCKERFILES[name]
        self.assertEqual(dockerfile(name)[2], {
            "FROM": "scratch", "COPY": f"--from=build /src/{program} /{program}", "USER": "65532:65532",
            "STOPSIGNAL": "SIGTERM", "HEALTHCHECK": "NONE", "ENTRYPOINT": f'["/{program}"]'})  # fmt: skip

    @for_each(DOCKERFILES)
    def test_what_it_copies_is_there_and_what_it_compiles_is_copied(self, name):
        copied, compiled, _ = dockerfile(name)
        program = f"{DOCKERFILES[name]}.cpp"
        sources = re.findall(r"\S+\.(?:cpp|S)", compiled)
        self.assertIn(program, sources)
        self.assertEqual({*sources, *included_by(ROOT / "tools" / program)}, {Path(each).name for each in copied})
        self.assertEqual([each for each in copied if not (ROOT / each).is_file()], [])

    @for_each(["plain.Dockerfile", "controller.Dockerfile"])
    def test_the_program_is_static_and_holds_early_signals_as_what_the_tests_run(self, name):
        flags = re.search(r"(?m)^STATIC := (.*)$", (ROOT / "tests/tests.mk").read_text()).group(1).split()
        self.assertLessEqual({"-static", "-s", "-Wl,-e,hold_signals"}, set(flags))
        self.assertLessEqual(set(flags), set(dockerfile(name)[1].split()))

    def test_it_is_what_make_dist_builds(self):
        packaging = (ROOT / "packaging/packaging.mk").read_text().replace("\\\n", "")
        made = [re.search(rf"(?m)^{name} := (.*?)(?:  #.*)?$", packaging).group(1) for name in ("IMAGE", r"image\.worker")]
        said = dockerfile("Dockerfile")[1].split(" ziglang c++ ")[1].split()
        beside = ["-target", "$cpu-linux-musl", "-std=c++17", "-isystem", "include", "-I.", "-o", "worker"]
        sources = ["worker.cpp", "hold_signals.S", "no_demangler.cpp"]
        self.assertEqual([word for word in said if word not in beside + sources],
                         [word for word in " ".join(made).split() if not word.endswith(".S")])  # fmt: skip
        self.assertLessEqual({"-static", "-s", "-Wl,-e,hold_signals"}, set(said))
        self.assertEqual([word for word in said if word in sources], sources)
        self.assertIn("$< $(image.$(program)) examples/deploy/no_demangler.cpp", packaging)
        version = re.search(r"ziglang==(\S+)", read("Dockerfile")).group(1)
        self.assertIn(f"\nZIG_VERSION := {version}\n", packaging)


# What a file says, by its place.
POD = "spec.template.spec"
SAID = {
    COMPOSE: {"services.worker.entrypoint": ["/worker"], "services.worker.stop_signal": "SIGTERM",
              "services.worker.init": False, "services.worker.ulimits": {"core": 0}, "services.worker.build.context": "../..",
              "services.worker.build.dockerfile": "examples/deploy/Dockerfile"},
    WORKER: {"apiVersion": "apps/v1", "kind": "Deployment", f"{POD}.securityContext.runAsNonRoot": True,
             f"{POD}.enableServiceLinks": False,
             # A roll-out needs layer to begin: one of the two is not 0.
             "spec.strategy.rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
    SIDECAR: {f"{POD}.initContainers.0.restartPolicy": "Always", f"{POD}.initContainers.0.name": "proxy",
              f"{POD}.initContainers.0.startupProbe.httpGet.path": "/ready"},
}  # fmt: skip


@unittest.skipUnless(yaml, "there is no yaml module (Debian: python3-yaml)")
class Yaml(unittest.TestCase):
    def load(self, name):
        return yaml.safe_load(read(name))

    def load_all(self, name):
        return list(yaml.safe_load_all(read(name)))

    def worker(self):
        return self.load(WORKER)["spec"]["template"]["spec"]["containers"][0]

    @for_each(SAID)
    def test_what_a_file_says(self, name):
        for path, said in SAID[name].items():
            found = self.load(name)
            for key in path.split("."):
                found = found[int(key) if isinstance(found, list) else key]
            self.assertEqual(found, said, path)

    def test_every_value_of_an_environment_is_a_string(self):
        (compose,) = self.load(COMPOSE)["services"].values()
        values = [*compose["environment"].values(), *(each["value"] for each in self.worker()["env"] if "value" in each)]
        self.assertEqual({str}, set(map(type, values)))

    def test_compose_with_a_backend(self):
        services = self.load(BACKENDS)["services"]
        workers = {name: each for name, each in services.items() if name.startswith("worker-")}
        self.assertEqual(set(services) - set(workers), {"postgres", "server"})
        self.assertGreaterEqual(len(workers), 3)
        for worker in workers.values():
            # No part of a stop is undone here.
            self.assertEqual(set(worker), {"extends", "environment", "depends_on"})
            self.assertEqual(worker["extends"], {"file": f"../{COMPOSE}", "service": "worker"})
            self.assertEqual(worker["depends_on"], {"server": {"condition": "service_healthy"}})
            self.assertLessEqual(set(worker["environment"]), variables_read())
            self.assertEqual(worker["environment"]["OJS_URL"], f"http://server:{services['server']['environment']['OJS_PORT']}")
        self.assertEqual(services["server"]["depends_on"], {"postgres": {"condition": "service_healthy"}})
        for port in services["server"]["ports"]:
            self.assertRegex(port, r"^127\.0\.0\.1:")
        # The commands of a rolling restart.
        self.assertEqual(re.findall(r"--force-recreate (worker-.*)", read(BACKENDS)), list(workers))

    def test_no_secret_of_it_has_a_default(self):
        for name, service in self.load(BACKENDS)["services"].items():
            for variable, value in service["environment"].items():
                for secret in re.findall(r"[A-Z_]*(?:PASSWORD|TOKEN|KEY)", f"{variable} {value}"):
                    self.assertRegex(value, r"\$\{[A-Z_]+(:\?[^}]+)?\}", f"{name}: {secret}")
        for name in "POSTGRES_PASSWORD", "OJS_API_KEY", "OJS_SERVER_IMAGE":
            self.assertIn("${" + name + ":?", read(BACKENDS), "unset, nothing starts")

    def test_the_proxy_fits_beside_the_worker(self):
        (proxy,) = self.load(SIDECAR)["spec"]["template"]["spec"]["initContainers"]
        self.assertNotEqual(proxy["name"], self.worker()["name"])
        self.assertEqual(proxy["securityContext"], self.worker()["securityContext"])
        self.assertEqual(set(proxy["resources"]["limits"]), set(self.worker()["resources"]["limits"]))

    @for_each(DEPLOYMENTS)
    def test_every_pod_has_one_budget_that_lets_some_go_and_keeps_some(self, name):
        budgets = [each["spec"] for each in self.load_all(BUDGETS)]
        self.assertEqual(len(budgets), len(DEPLOYMENTS))
        deployment = self.load(name)["spec"]
        (budget,) = [each for each in budgets if each["selector"] == deployment["selector"]]
        self.assertTrue(0 < budget["maxUnavailable"] < deployment["replicas"])
        self.assertEqual(deployment["selector"]["matchLabels"], deployment["template"]["metadata"]["labels"])

    @for_each(DEPLOYMENTS)
    def test_every_container_has_its_share_and_no_more(self, name):
        spec = self.load(name)["spec"]["template"]["spec"]
        scratch = sum(size(each["emptyDir"]["sizeLimit"]) for each in spec.get("volumes", []) if "emptyDir" in each)
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            with self.subTest(container=container["name"]):
                requests, limits = container["resources"]["requests"], container["resources"]["limits"]
                self.assertEqual(set(requests), {"cpu", "memory", "ephemeral-storage"})
                self.assertEqual(set(limits), {"memory", "ephemeral-storage"})  # why no cpu: deployment.yaml
                for each in limits:
                    self.assertLessEqual(size(requests[each]), size(limits[each]))
                self.assertGreaterEqual(size(limits["ephemeral-storage"]), scratch + KEPT_LOG)
                self.assertEqual(container["securityContext"], {
                    "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}})

    def test_network_policy_of_the_controllers(self):
        _, policy = (each["spec"] for each in self.load_all(NETWORK))
        (rule,) = policy["podSelector"]["matchExpressions"]
        pods = [self.load(name)["spec"]["template"] for name in CONTROLLERS]
        self.assertEqual(rule["operator"], "In")
        self.assertCountEqual([{rule["key"]: each} for each in rule["values"]], [each["metadata"]["labels"] for each in pods])
        self.assertEqual((policy["policyTypes"], policy["egress"]), (["Ingress", "Egress"], []))
        for pod in pods:
            (port,) = pod["spec"]["containers"][0]["ports"]
            self.assertEqual([each["port"] for each in policy["ingress"][0]["ports"]], [port["containerPort"]])

    def test_network_policy(self):
        policy = self.load_all(NETWORK)[0]["spec"]
        self.assertEqual(policy["podSelector"], self.load(WORKER)["spec"]["selector"])
        self.assertEqual(policy["ingress"][0]["ports"][0]["port"], self.worker()["ports"][0]["containerPort"])
        name, port = re.fullmatch(r"http://([a-z-]+):(\d+)", setting(WORKER, "OJS_URL")).groups()
        backend, dns = policy["egress"]
        self.assertEqual(backend["to"][0]["podSelector"]["matchLabels"], {"app.kubernetes.io/name": name})
        self.assertEqual([each["port"] for each in backend["ports"]], [int(port)])
        self.assertEqual({(each["protocol"], each["port"]) for each in dns["ports"]}, {("UDP", 53), ("TCP", 53)})

    # [GS 8.1 (d)]
    def test_probes_and_hook(self):
        (port,) = self.worker()["ports"]
        self.assertEqual(setting(WORKER, "OJS_HEALTH_ADDR"), f"[::]:{port['containerPort']}")
        for probe, path in [("readinessProbe", "/readyz"), ("livenessProbe", "/livez")]:
            self.assertEqual(self.worker()[probe]["httpGet"], {"path": path, "port": port["name"]})
        hook = self.worker()["lifecycle"]["preStop"]["exec"]["command"]
        self.assertEqual(hook, [*self.worker()["command"], "--signal", "quiet", "--wait"])

    @for_each(CONTROLLERS)
    # [Spot same configuration everywhere]
    def test_controllers(self, name):
        config, claim = self.load_all(CONTROLLER_CONFIG)
        settings = json.loads(config["data"]["controller.json"])
        spec = self.load(name)["spec"]["template"]["spec"]
        volumes = {each["name"]: each for each in spec["volumes"]}
        self.assertEqual(list(volumes["tmp"]["emptyDir"]), ["sizeLimit"])
        self.assertEqual(volumes["config"]["configMap"]["name"], config["metadata"]["name"])
        self.assertEqual(volumes["spool"]["persistentVolumeClaim"]["claimName"], claim["metadata"]["name"])
        (controller,) = spec["containers"]
        mounts = {each["name"]: each["mountPath"] for each in controller["volumeMounts"]}
        self.assertEqual(mounts["spool"], settings["spool_dir"])
        # The kubelet makes a volume with fsGroup writable to that group.
        security = spec["securityContext"]
        self.assertEqual(security["fsGroup"], security["runAsGroup"])
        self.assertIn({"name": "OJS_SPOOL_GROUP_WRITE", "value": "on"}, controller["env"])
        self.assertEqual(mounts["tmp"], str(Path(settings["termination_type_file"]).parent))
        self.assertEqual(settings["metrics_address"], f"[::]:{controller['ports'][0]['containerPort']}")
        # It finds its configuration where that is mounted.
        self.assertEqual(controller["command"], ["/controller"])
        source = (ROOT / "tools/controller.cpp").read_text()
        self.assertIn(f'default_config = "{mounts["config"]}/controller.json"', source)
        for init in spec.get("initContainers", []):
            self.assertEqual((init["image"], init["command"]), (controller["image"], ["/controller", "--mark-normal"]))
            own = {each["name"]: each["mountPath"] for each in init["volumeMounts"]}
            self.assertLessEqual(own.items(), mounts.items())
            self.assertLessEqual({"tmp", "config"}, set(own))
        if "lifecycle" in controller:
            self.assertEqual(controller["lifecycle"]["preStop"]["exec"]["command"], ["/controller", "--reclaim"])


# What a unit must say, and what of it in that order.
UNITS_SAY = {
    "ojs-worker.service": ({"TasksMax": "256"}, "\nSystemCallFilter=@system-service\nSystemCallFilter=~@resources\n"),
    # A process that the kernel ends for its memory is restarted by the launcher; the next launcher reads the state file.
    "ojs-launcher.service": ({"OOMPolicy": "continue", "RuntimeDirectoryMode": "0700", "RuntimeDirectoryPreserve": "restart"},
                             "\nNotifyAccess=main\n"),
}  # fmt: skip


class Systemd(unittest.TestCase):
    @for_each(UNITS_SAY)
    def test_what_it_must_say(self, name):
        own, in_order = UNITS_SAY[name]
        wanted = {"Type": "notify", "NotifyAccess": "main", "KillMode": "mixed", "KillSignal": "SIGTERM", "SendSIGHUP": "no",
                  "Restart": "always", "RestartPreventExitStatus": "64", "LimitCORE": "0", **own}
        service = without_comments(name).split("[Service]")[1].split("[Install]")[0]
        said = dict(line.split("=", 1) for line in service.split("\n") if line)
        self.assertLessEqual(wanted.items(), said.items())
        self.assertGreater(seconds(said["WatchdogSec"]), 0)
        self.assertIn(in_order, service)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "there is no systemd-analyze")
    @for_each(UNITS_SAY)
    def test_systemd_finds_no_fault(self, name):
        with tempfile.TemporaryDirectory() as folder:
            unit = Path(folder) / name
            # It looks whether the program is there.
            unit.write_text(re.sub(r"(?m)^ExecStart=.*", "ExecStart=" + shutil.which("true"), read(name)))
            done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, [line for line in done.stderr.splitlines() if name in line]), (0, []), done.stderr)


if __name__ == "__main__":
    unittest.main()
