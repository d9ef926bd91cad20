"""The files of examples/deploy: that their numbers add up, and that they are what their comments say."""

import json
import os
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
KEPT_LOG = 50 << 20  # what the kubelet keeps of a container's log unless told otherwise: 5 files of 10 Mi
REPORTING = 5  # what a worker needs after its grace period, in seconds

# File, and how it says when SIGKILL comes.
GRANTS = {
    "docker-compose.yml": r"^ +stop_grace_period: (\S+)$",
    "kubernetes/deployment.yaml": r"^ +terminationGracePeriodSeconds: (\d+)$",
    "ojs-worker.service": r"^TimeoutStopSec=(\S+)$",
    "ojs-worker.nomad.hcl": r'^ +kill_timeout = "(\S+)"$',
}
ECS = "ecs-task-definition.json"
SIDECAR = "kubernetes/proxy-sidecar.yaml"
CONTROLLER_CONFIG = "kubernetes/controller-config.yaml"
CONTROLLERS = ["kubernetes/controller-spot.yaml", "kubernetes/controller-normal.yaml"]
DEPLOYMENTS = ["kubernetes/deployment.yaml", *CONTROLLERS]
DOCKERFILES = {"plain.Dockerfile": "worker", "Dockerfile": "worker", "controller.Dockerfile": "controller"}  # and the program that is in the image
POLICIES = ["kubernetes/disruption-budget.yaml", "kubernetes/network-policy.yaml"]
BACKENDS = "backends/docker-compose.yml"
FILES = [*GRANTS, ECS, SIDECAR, BACKENDS, *DOCKERFILES, *POLICIES, CONTROLLER_CONFIG, *CONTROLLERS]
# File, and how it says how much memory the worker may have.
MEMORY = {
    "docker-compose.yml": r"^ +mem_limit: (\d+)m$",
    "kubernetes/deployment.yaml": r"^ +limits: \{memory: (\d+)Mi,",
    "ojs-worker.service": r"^MemoryMax=(\d+)M$",
    "ojs-worker.nomad.hcl": r"^ +memory = (\d+)$",
}


def read(name):
    return (DEPLOY / name).read_text()


def without_comments(text):
    return re.sub(r"(?m)^\s*#.*\n", "", text)


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
    """The value of an environment variable in any of the three notations; None if it is not set."""
    found = re.search(rf'\b{variable}(?:=|: | = |, value: )"?([^"\s}}]+)', without_comments(read(name)))
    return found.group(1) if found else None


def duration(name, variable, fallback):
    value = setting(name, variable)
    return fallback if value is None else seconds(value)


def summed(test, name):
    """The numbers of the sum in a comment; the last one is the total."""
    rows = re.findall(r"(?m)^# +([+=]?) +(\d+)  ?\S", read(name))
    test.assertEqual([sign for sign, _ in rows], ["", *["+"] * (len(rows) - 2), "="])
    numbers = [int(number) for _, number in rows]
    test.assertEqual(sum(numbers[:-1]), numbers[-1])
    return numbers


class Budgets(unittest.TestCase):
    def test_what_is_granted_holds_all_that_is_spent(self):
        for name in GRANTS:
            with self.subTest(name):
                prestop = duration(name, "OJS_PRESTOP_DELAY", 0)
                grace = duration(name, "OJS_SHUTDOWN_GRACE_PERIOD", None)
                stop = max(REPORTING, duration(name, "OJS_STOP_TIMEOUT", 5))
                self.assertGreaterEqual(granted(name), prestop + grace + stop)
                # The specification's recommendation: 10 s more than the grace period.
                self.assertGreaterEqual(granted(name), prestop + grace + 10)

    def test_the_worker_is_told_what_is_granted(self):
        for name in GRANTS:
            with self.subTest(name):
                self.assertEqual(duration(name, "OJS_CONTAINER_GRACE_PERIOD", None), granted(name))

    def test_only_where_there_is_a_hook_is_there_time_for_it(self):
        for name in GRANTS:
            with self.subTest(name):
                has_hook = "preStop:" in without_comments(read(name))
                self.assertEqual(duration(name, "OJS_PRESTOP_DELAY", 0) > 0, has_hook)

    def test_the_sums_in_the_comments(self):
        for name in GRANTS:
            with self.subTest(name):
                numbers = summed(self, name)
                self.assertEqual(numbers[-1], granted(name))
                self.assertIn(duration(name, "OJS_SHUTDOWN_GRACE_PERIOD", None), numbers)

    def test_the_memory_granted_is_enough_for_all_jobs_as_the_comment_has_it(self):
        for name in GRANTS:
            with self.subTest(name):
                comment = re.sub(r"\s*\n\s*# ", " ", read(name))
                own, job, total = map(int, re.search(r"(\d+) Mi?B? and (\d+) Mi?B? for each job.*? are (\d+)[;:.]", comment).groups())
                self.assertEqual(own + job * int(setting(name, "OJS_CONCURRENCY") or 10), total)
                self.assertLessEqual(total, int(re.search(MEMORY[name], read(name), re.MULTILINE).group(1)))

    def test_the_grace_period_is_the_formula_of_the_specification(self):
        for name in GRANTS:
            with self.subTest(name):
                parts = re.search(r"longest job \((\d+)\), a heartbeat \((\d+)\), and a margin \((\d+)\)", read(name))
                job, heartbeat, margin = map(int, parts.groups())
                self.assertEqual(duration(name, "OJS_SHUTDOWN_GRACE_PERIOD", None), job + heartbeat + margin)
                self.assertEqual(duration(name, "OJS_HEARTBEAT_INTERVAL", None), heartbeat)


class Ecs(unittest.TestCase):
    """JSON has no comments: the reasons are in docs/operating.md."""

    def setUp(self):
        (self.worker,) = json.loads(read(ECS))["containerDefinitions"]
        self.variables = {each["name"]: each["value"] for each in self.worker["environment"]}

    def test_what_is_granted_holds_all_that_is_spent(self):
        grace = seconds(self.variables["OJS_SHUTDOWN_GRACE_PERIOD"])
        self.assertEqual(seconds(self.variables["OJS_CONTAINER_GRACE_PERIOD"]), self.worker["stopTimeout"])
        self.assertGreaterEqual(self.worker["stopTimeout"], grace + 10)
        self.assertGreaterEqual(self.worker["stopTimeout"], grace + seconds(self.variables["OJS_STOP_TIMEOUT"]))
        self.assertLessEqual(self.worker["stopTimeout"], 120)  # the most that Fargate grants

    def test_it_is_the_same_worker_as_elsewhere(self):
        compose = "docker-compose.yml"
        self.assertIn(f"image: {self.worker['image']}\n", read(compose))
        self.assertEqual(self.worker["entryPoint"], ["/worker"])
        for variable, value in self.variables.items():
            if variable != "OJS_URL":
                self.assertEqual(setting(compose, variable), value)
        self.assertIs(self.worker["readonlyRootFilesystem"], True)


def variables_read():
    """The names in literals that are nothing but names: of several in one the first that is set counts."""
    literals = re.findall(r'"(OJS_[A-Z_]+(?: [A-Z_]+)*)"', (ROOT / "ojs_shutdown.hpp").read_text())
    return {name for literal in literals for name in literal.split()}


class Names(unittest.TestCase):
    def test_every_variable_is_one_the_worker_reads(self):
        known = variables_read()
        for name in [*GRANTS, ECS]:
            for variable in re.findall(r"\bOJS_[A-Z_]+\b", without_comments(read(name))):
                self.assertIn(variable, known, name)

    def test_every_flag_is_one_the_worker_has(self):
        known = set(re.findall(r"--[a-z]+", (ROOT / "tools/worker.cpp").read_text()))
        named = {flag for name in FILES for flag in re.findall(r"worker\"?,? \"?(--[a-z]+)", read(name))}
        self.assertTrue(named)
        self.assertEqual(named - known, set())

    def test_every_flag_is_one_the_controller_has(self):
        known = set(re.findall(r"--[a-z-]+", (ROOT / "tools/controller.cpp").read_text()))
        for name in CONTROLLERS:
            named = re.findall(r"--[a-z-]+", without_comments(read(name)))
            self.assertTrue(named)
            self.assertEqual(set(named) - known, set())

    def test_no_shell_runs_anything(self):
        for name in FILES:
            lines = without_comments(read(name)).splitlines()
            started = [line for line in lines if re.search(r"(?i)^\s*-?\s*(ExecStart=|command:|entrypoint)", line)]
            for line in started:
                self.assertNotRegex(line, r"\bsh\b", name)

    def test_no_registry_is_named(self):
        for name in FILES:
            for image in re.findall(r"(?m)^\s*(?:FROM|image:) (?:--platform=\S+ )?(\S+)", without_comments(read(name))):
                self.assertRegex(image, r"^([a-z-]+(:[a-z0-9.]+)?(@sha256:[0-9a-f]{64})?|\$\{[A-Z_]+:\?an)$", name)

    def test_what_is_run_is_a_version(self):
        version = re.search(r'OJS_SHUTDOWN_VERSION "(.*)"', (ROOT / "ojs_shutdown.hpp").read_text()).group(1)
        for name in ["docker-compose.yml", "kubernetes/deployment.yaml", "ojs-worker.nomad.hcl", *CONTROLLERS]:
            images = re.findall(r'(?m)^[\s-]*image(?:: | = ")([^\s"]+)"?$', without_comments(read(name)))
            self.assertTrue(images, name)
            for image in images:
                self.assertRegex(image, rf"^ojs-(worker|controller):{re.escape(version)}$", name)


class Controller(unittest.TestCase):
    """The two ways to run tools/controller.cpp, which differ in who writes the termination type file."""

    SPOT, NORMAL = CONTROLLERS

    def setUp(self):
        self.config = json.loads(read(CONTROLLER_CONFIG).split("controller.json: |\n")[1].split("---")[0])

    def granted(self, name):
        return int(re.search(r"(?m)^ +terminationGracePeriodSeconds: (\d+)$", read(name)).group(1))

    def test_every_key_is_one_the_controller_reads(self):
        source = (ROOT / "tools/controller.cpp").read_text()
        for key in self.config:
            self.assertIn(f'{{"{key}"', source)

    def test_it_is_the_configuration_of_the_guide(self):
        self.assertEqual(self.config["retry_delays"], [0, 1])
        self.assertEqual(self.config["termination_grace_period"], "3550s")
        self.assertEqual(self.config["child_process_shutdown_timeout"], "10s")
        self.assertIn("{job}", self.config["command"])

    def test_what_is_granted_holds_the_grace_period(self):
        grace = seconds(self.config["termination_grace_period"])
        self.assertGreaterEqual(self.granted(self.NORMAL), grace + REPORTING + 10)
        self.assertEqual(seconds(self.config["container_grace_period"]), self.granted(self.NORMAL))
        self.assertLessEqual(self.granted(self.SPOT), 120)  # a reclaim takes a second; the machine is gone after this

    def test_the_sums_in_the_comments(self):
        for name in CONTROLLERS:
            with self.subTest(name):
                self.assertEqual(summed(self, name)[-1], self.granted(name))

    def test_only_the_normal_one_is_marked_and_only_the_spot_one_has_the_hook(self):
        self.assertIn('["/controller", "--mark-normal"]', without_comments(read(self.NORMAL)))
        self.assertNotIn("preStop", without_comments(read(self.NORMAL)))
        self.assertIn('["/controller", "--reclaim"]', without_comments(read(self.SPOT)))
        self.assertNotIn("--mark-normal", without_comments(read(self.SPOT)))


def included_by(path):
    """The names of the files of ours that it includes, and of those that these include."""
    out = set()
    for name in re.findall(r'(?m)^#include "(.*)"$', path.read_text()):
        found = next(ROOT / folder / name for folder in ("examples", "tools", "extensions", "") if (ROOT / folder / name).exists())
        out |= {name} | included_by(found)
    return out


class Dockerfile(unittest.TestCase):
    NAME = "Dockerfile"

    def setUp(self):
        joined = re.sub(r" *\\\n\s*", " ", without_comments(read(self.NAME)))
        steps = [line.split(" ", 1) for line in joined.splitlines() if line]
        last = max(i for i, step in enumerate(steps) if step[0] == "FROM")
        self.build, self.image = steps[:last], dict(steps[last:])
        self.program = DOCKERFILES[self.NAME]
        compiled = [words for what, words in self.build if words.endswith(f" -o {self.program}")]
        self.assertEqual(len(compiled), 1)
        self.compiled = compiled[0]

    def test_the_image_is_empty_but_for_the_program(self):
        self.assertEqual(list(self.image), ["FROM", "COPY", "USER", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT"])
        self.assertEqual(self.image["FROM"], "scratch")
        self.assertEqual(self.image["COPY"], f"--from=build /src/{self.program} /{self.program}")

    def test_started_without_a_shell_as_nobody_and_stopped_by_sigterm(self):
        self.assertEqual(json.loads(self.image["ENTRYPOINT"]), [f"/{self.program}"])
        self.assertRegex(self.image["USER"], r"^[1-9]\d*:[1-9]\d*$")
        self.assertEqual(self.image["STOPSIGNAL"], "SIGTERM")
        self.assertEqual(self.image["HEALTHCHECK"], "NONE")  # nothing in there could run one

    def test_what_it_copies_is_there_and_what_it_compiles_is_copied(self):
        copied = [source for what, words in self.build if what == "COPY" for source in words.split()[:-1]]
        for source in copied:
            self.assertTrue((ROOT / source).is_file(), source)
        names = [Path(each).name for each in copied]
        compiled = re.findall(r"\S+\.(?:cpp|S)", self.compiled)
        self.assertIn(f"{self.program}.cpp", compiled)
        self.assertEqual(set(compiled) | included_by(self.source()), set(names))

    def source(self):
        return ROOT / f"tools/{self.program}.cpp"

    def test_the_program_is_static_and_holds_early_signals(self):
        for flag in ["-static", "-s", "-Wl,-e,hold_signals"]:
            self.assertIn(f" {flag} ", self.compiled)
            self.assertIn(flag, self.made())

    def made(self):
        """The flags with which `make` builds what the tests run."""
        packaging = (ROOT / "packaging/packaging.mk").read_text().replace("\\\n", "")
        flags = [re.search(rf"(?m)^{name} := (.*?)(?:  #.*)?$", packaging).group(1) for name in ("IMAGE", r"image\.worker")]
        return " ".join(flags).split()

    def test_it_is_what_make_dist_builds(self):
        packaging = (ROOT / "packaging/packaging.mk").read_text()
        said = self.compiled.split(" ziglang c++ ")[1].split()
        beside = ["-target", "$cpu-linux-musl", "-std=c++17", "-isystem", "include", "-I.", "-o", "worker"]
        sources = ["worker.cpp", "hold_signals.S", "no_demangler.cpp"]
        self.assertEqual([word for word in said if word not in beside + sources], [word for word in self.made() if not word.endswith(".S")])
        self.assertEqual([word for word in said if word in sources], sources)
        self.assertIn("$$< $(image.$(1)) examples/deploy/no_demangler.cpp", packaging)
        version = re.search(r"ziglang==(\S+)", read(self.NAME)).group(1)
        self.assertEqual(re.search(r"(?m)^ZIG_VERSION := (.*)$", packaging).group(1), version)


class PlainDockerfile(Dockerfile):
    NAME = "plain.Dockerfile"
    test_it_is_what_make_dist_builds = None  # this one is glibc's

    def made(self):
        flags = re.search(r"(?m)^STATIC := (.*)$", (ROOT / "tests/tests.mk").read_text()).group(1)
        makefile = (ROOT / "tests/container/container.mk").read_text()
        return re.search(r"(?m)static_%:.*\n\t(.*)\)$", makefile).group(1).replace("$(STATIC)", flags).strip(")").split()


class ControllerDockerfile(PlainDockerfile):
    NAME = "controller.Dockerfile"


@unittest.skipUnless(yaml, "there is no yaml module (Debian: python3-yaml)")
class Yaml(unittest.TestCase):
    def load(self, name):
        return yaml.safe_load(read(name))

    def load_all(self, name):
        return list(yaml.safe_load_all(read(name)))

    def test_compose(self):
        (worker,) = self.load("docker-compose.yml")["services"].values()
        self.assertIsInstance(worker["entrypoint"], list)
        self.assertEqual(worker["stop_signal"], "SIGTERM")
        self.assertIs(worker["init"], False)
        self.assertTrue(all(isinstance(value, str) for value in worker["environment"].values()))
        self.assertEqual(worker["ulimits"], {"core": 0})
        dockerfile = DEPLOY / worker["build"]["context"] / worker["build"]["dockerfile"]
        self.assertEqual(dockerfile.resolve(), DEPLOY / "Dockerfile")

    def test_compose_with_a_backend(self):
        text = read(BACKENDS)
        services = self.load(BACKENDS)["services"]
        workers = {name: each for name, each in services.items() if name.startswith("worker-")}
        self.assertEqual(set(services) - set(workers), {"postgres", "server"})
        base = self.load("docker-compose.yml")["services"]
        known = variables_read()
        for name, worker in workers.items():
            self.assertEqual(set(worker), {"extends", "environment", "depends_on"}, name)  # no part of a stop is undone here
            file = (DEPLOY / BACKENDS).parent / worker["extends"]["file"]
            self.assertEqual(file.resolve(), DEPLOY / "docker-compose.yml")
            self.assertIn(worker["extends"]["service"], base)
            self.assertEqual(worker["depends_on"], {"server": {"condition": "service_healthy"}})
            for variable in worker["environment"]:
                self.assertIn(variable, known)
            self.assertIn(f"--force-recreate {name}\n", text)  # the commands of a rolling restart
        self.assertEqual(len(re.findall("--force-recreate worker-", text)), len(workers))
        self.assertGreaterEqual(len(workers), 3)
        address = workers["worker-1"]["environment"]["OJS_URL"]
        self.assertEqual(address, f"http://server:{services['server']['environment']['OJS_PORT']}")
        for port in services["server"]["ports"]:
            self.assertRegex(port, r"^127\.0\.0\.1:")
        self.assertEqual(services["server"]["depends_on"], {"postgres": {"condition": "service_healthy"}})
        self.assertNotIn(":latest", text)

    def test_no_secret_of_it_has_a_default(self):
        for name, service in self.load(BACKENDS)["services"].items():
            for variable, value in service["environment"].items():
                for secret in re.findall(r"[A-Z_]*(?:PASSWORD|TOKEN|KEY)", f"{variable} {value}"):
                    self.assertRegex(value, r"\$\{[A-Z_]+(:\?[^}]+)?\}", f"{name}: {secret}")

    @unittest.skipUnless(shutil.which("docker-compose"), "there is no docker-compose")
    def test_docker_compose_finds_no_fault_with_it(self):
        variables = {"POSTGRES_PASSWORD": "a", "OJS_API_KEY": "b", "OJS_SERVER_IMAGE": "c:1"}
        command = ["docker-compose", "-f", DEPLOY / BACKENDS, "config", "-q"]
        done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        without = {name: value for name, value in os.environ.items() if name not in variables}
        self.assertNotEqual(0, subprocess.run(command, env=without, capture_output=True, timeout=60).returncode)

    def test_deployment(self):
        deployment = self.load("kubernetes/deployment.yaml")
        self.assertEqual((deployment["apiVersion"], deployment["kind"]), ("apps/v1", "Deployment"))
        pod = deployment["spec"]["template"]
        self.assertEqual(deployment["spec"]["selector"]["matchLabels"], pod["metadata"]["labels"])
        # A roll-out needs room to begin: one of the two is not 0.
        rolling = deployment["spec"]["strategy"]["rollingUpdate"]
        self.assertEqual((rolling["maxUnavailable"], rolling["maxSurge"]), (0, 1))
        self.assertIs(pod["spec"]["securityContext"]["runAsNonRoot"], True)
        self.assertIs(pod["spec"]["enableServiceLinks"], False)

    def test_the_proxy_outlives_the_worker(self):
        (proxy,) = self.load(SIDECAR)["spec"]["template"]["spec"]["initContainers"]
        self.assertEqual(proxy["restartPolicy"], "Always")
        self.assertIn("startupProbe", proxy)
        worker = self.load("kubernetes/deployment.yaml")["spec"]["template"]["spec"]["containers"][0]
        self.assertNotEqual(proxy["name"], worker["name"])
        self.assertEqual(proxy["securityContext"], worker["securityContext"])
        self.assertEqual(set(proxy["resources"]["limits"]), set(worker["resources"]["limits"]))

    def test_every_pod_has_one_budget_that_lets_some_go_and_keeps_some(self):
        budgets = [each["spec"] for each in self.load_all("kubernetes/disruption-budget.yaml")]
        self.assertEqual(len(budgets), len(DEPLOYMENTS))
        for name in DEPLOYMENTS:
            deployment = self.load(name)["spec"]
            labels = deployment["template"]["metadata"]["labels"]
            (budget,) = [each for each in budgets if each["selector"]["matchLabels"] == labels]
            self.assertTrue(0 < budget["maxUnavailable"] < deployment["replicas"], name)

    def test_every_container_has_its_share_and_no_more(self):
        for name in DEPLOYMENTS:
            spec = self.load(name)["spec"]["template"]["spec"]
            scratch = sum(size(each["emptyDir"]["sizeLimit"]) for each in spec.get("volumes", []) if "emptyDir" in each)
            for container in [*spec.get("initContainers", []), *spec["containers"]]:
                with self.subTest(name, container=container["name"]):
                    requests, limits = container["resources"]["requests"], container["resources"]["limits"]
                    self.assertEqual(set(requests), {"cpu", "memory", "ephemeral-storage"})
                    self.assertEqual(set(limits), {"memory", "ephemeral-storage"})  # why no cpu: deployment.yaml
                    for each in limits:
                        self.assertLessEqual(size(requests[each]), size(limits[each]))
                    self.assertGreaterEqual(size(limits["ephemeral-storage"]), scratch + KEPT_LOG)
                    self.assertIs(container["securityContext"]["readOnlyRootFilesystem"], True)
                    self.assertIs(container["securityContext"]["allowPrivilegeEscalation"], False)
                    self.assertEqual(container["securityContext"]["capabilities"], {"drop": ["ALL"]})

    def test_network_policy_of_the_controllers(self):
        _, policy = (each["spec"] for each in self.load_all("kubernetes/network-policy.yaml"))
        (rule,) = policy["podSelector"]["matchExpressions"]
        pods = [self.load(name)["spec"]["template"] for name in CONTROLLERS]
        self.assertEqual(rule["operator"], "In")
        self.assertEqual([{rule["key"]: each} for each in sorted(rule["values"])],
                         sorted((each["metadata"]["labels"] for each in pods), key=str))
        self.assertEqual((policy["policyTypes"], policy["egress"]), (["Ingress", "Egress"], []))
        for pod in pods:
            (port,) = pod["spec"]["containers"][0]["ports"]
            self.assertEqual([each["port"] for each in policy["ingress"][0]["ports"]], [port["containerPort"]])

    def test_network_policy(self):
        policy = self.load_all("kubernetes/network-policy.yaml")[0]["spec"]
        pod = self.load("kubernetes/deployment.yaml")["spec"]["template"]
        (worker,) = pod["spec"]["containers"]
        self.assertEqual(policy["podSelector"]["matchLabels"], pod["metadata"]["labels"])
        self.assertEqual(policy["ingress"][0]["ports"][0]["port"], worker["ports"][0]["containerPort"])
        name, port = re.fullmatch(r"http://([a-z-]+):(\d+)", worker["env"][0]["value"]).groups()
        backend, dns = policy["egress"]
        self.assertEqual(backend["to"][0]["podSelector"]["matchLabels"], {"app.kubernetes.io/name": name})
        self.assertEqual([each["port"] for each in backend["ports"]], [int(port)])
        self.assertEqual({(each["protocol"], each["port"]) for each in dns["ports"]}, {("UDP", 53), ("TCP", 53)})

    def test_probes_and_hook(self):
        (worker,) = self.load("kubernetes/deployment.yaml")["spec"]["template"]["spec"]["containers"]
        (port,) = worker["ports"]
        variables = {each["name"]: each.get("value") for each in worker["env"]}
        self.assertTrue(all(isinstance(value, (str, type(None))) for value in variables.values()))
        self.assertEqual(variables["OJS_HEALTH_ADDR"], f"0.0.0.0:{port['containerPort']}")
        for probe, path in [("readinessProbe", "/readyz"), ("livenessProbe", "/livez")]:
            self.assertEqual(worker[probe]["httpGet"], {"path": path, "port": port["name"]})
        hook = worker["lifecycle"]["preStop"]
        self.assertEqual(hook["exec"]["command"], [*worker["command"], "--signal", "quiet"])

    def test_controllers(self):
        config, claim = self.load_all(CONTROLLER_CONFIG)
        settings = json.loads(config["data"]["controller.json"])
        for name in CONTROLLERS:
            with self.subTest(name):
                deployment = self.load(name)
                pod = deployment["spec"]["template"]
                self.assertEqual(deployment["spec"]["selector"]["matchLabels"], pod["metadata"]["labels"])
                spec = pod["spec"]
                volumes = {each["name"]: each for each in spec["volumes"]}
                self.assertEqual(list(volumes["tmp"]["emptyDir"]), ["sizeLimit"])
                self.assertEqual(volumes["config"]["configMap"]["name"], config["metadata"]["name"])
                self.assertEqual(volumes["spool"]["persistentVolumeClaim"]["claimName"], claim["metadata"]["name"])
                (controller,) = spec["containers"]
                mounts = {each["name"]: each["mountPath"] for each in controller["volumeMounts"]}
                self.assertEqual(mounts["spool"], settings["spool_dir"])
                self.assertEqual(mounts["tmp"], str(Path(settings["termination_type_file"]).parent))
                self.assertEqual(settings["metrics_address"], f"0.0.0.0:{controller['ports'][0]['containerPort']}")
                self.assertIn("memory", controller["resources"]["limits"])
                program, *flags = controller["command"]
                self.assertEqual(flags, [])  # it finds its configuration where that is mounted
                source = (ROOT / "tools/controller.cpp").read_text()
                self.assertIn(f'default_config = "{mounts["config"]}/controller.json"', source)
                for init in spec.get("initContainers", []):
                    self.assertEqual(init["image"], controller["image"])
                    self.assertEqual(init["command"], [program, "--mark-normal"])
                    own = {each["name"]: each["mountPath"] for each in init["volumeMounts"]}
                    self.assertEqual((own["tmp"], own["config"]), (mounts["tmp"], mounts["config"]))
                if "lifecycle" in controller:
                    hook = controller["lifecycle"]["preStop"]["exec"]["command"]
                    self.assertEqual(hook, [program, "--reclaim"])


class Systemd(unittest.TestCase):
    NAME = "ojs-worker.service"
    OWN = {"TasksMax": "256"}
    IN_ORDER = "\nSystemCallFilter=@system-service\nSystemCallFilter=~@resources\n"

    def test_what_it_must_say(self):
        wanted = {"Type": "notify", "NotifyAccess": "main", "KillMode": "mixed", "KillSignal": "SIGTERM", "SendSIGHUP": "no",
                  "Restart": "on-failure", "RestartPreventExitStatus": "64", "LimitCORE": "0", **self.OWN}
        service = without_comments(read(self.NAME)).split("[Service]")[1].split("[Install]")[0]
        said = dict(line.split("=", 1) for line in service.split("\n") if line)
        self.assertEqual({key: said.get(key) for key in wanted}, wanted)
        self.assertGreater(seconds(said["WatchdogSec"]), 0)
        self.assertIn(self.IN_ORDER, service)

    def test_every_line_is_a_section_or_an_assignment(self):
        for line in without_comments(read(self.NAME)).splitlines():
            self.assertRegex(line, r"^(|\[(Unit|Service|Install)\]|[A-Za-z]+=.*)$")

    @unittest.skipUnless(shutil.which("systemd-analyze"), "there is no systemd-analyze")
    def test_systemd_finds_no_fault(self):
        with tempfile.TemporaryDirectory() as folder:
            unit = Path(folder) / self.NAME
            # It looks whether the program is there.
            unit.write_text(re.sub(r"(?m)^ExecStart=.*", "ExecStart=" + shutil.which("true"), read(self.NAME)))
            done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=60)
        own = [line for line in done.stderr.splitlines() if self.NAME in line]
        self.assertEqual((done.returncode, own), (0, []), done.stderr)


class SystemdLauncher(Systemd):
    NAME = "ojs-launcher.service"
    # A process that the kernel ends for its memory is restarted by the launcher; the next launcher reads the state file.
    OWN = {"OOMPolicy": "continue", "RuntimeDirectoryMode": "0700", "RuntimeDirectoryPreserve": "restart"}
    IN_ORDER = "\nNotifyAccess=main\n"


if __name__ == "__main__":
    unittest.main()
