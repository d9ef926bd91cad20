// Containers by their evidence, and what PID 1 does with signals: every source alone, together, absent and hostile.
#include "findings.hpp"

using namespace std::string_literals;
using namespace test;
using ojs::container_info;
using ojs::detect_container;
using ojs::finding;

namespace {

constexpr bool has_proc = OJS_SHUTDOWN_USE_PROC == 1;
const std::string id(64, 'a');

// Then it is recognised as a machine, not a container.
file_tree& with_systemd(file_tree& tree) {
    return tree.process("1", 1, 0, "systemd", "/sbin/init", "systemd");
}

container_info look(const file_tree& tree, const variables& set = {}, pid_t pid = 7) {
    return detect_container(probe(tree.root(), set, pid));
}

struct file_case {
    const char* path;
    std::string content;
    const char* runtime;  // null: no evidence
    bool in_proc = true;
};

// With one file of evidence, on a machine whose PID 1 is systemd.
void check_file(const file_case& each) {
    CAPTURE(each.path);
    CAPTURE(each.content);
    file_tree tree;
    with_systemd(with_us(tree));
    tree.file(each.path, each.content);
    const container_info info = look(tree);
    const bool expected = each.runtime != nullptr && (has_proc || !each.in_proc);
    CHECK(info.in_container == expected);
    if (!expected) {
        CHECK(info.evidence.empty());
        return;
    }
    REQUIRE(info.evidence.size() == 1);
    CHECK(info.evidence[0] == each.path);
    CHECK(info.runtime == each.runtime);
}

std::string mount_line(const std::string& mounted, const std::string& point, const std::string& rest) {
    return "22 1 0:5 / /proc rw - proc proc rw\n900 800 0:50 " + mounted + " " + point +
           " rw,relatime master:1 - " + rest + "\n";
}

}  // namespace

TEST_CASE("container: no container is detected on an empty root or on a machine with systemd") {
    file_tree machine;
    with_systemd(with_us(machine));
    machine.file("/proc/self/cgroup", "0::/user.slice/user-1000.slice/session-2.scope\n");
    machine.file("/proc/1/cgroup", "0::/init.scope\n");
    machine.file(
        "/proc/self/mountinfo",
        "28 1 254:1 / / rw - ext4 /dev/vda1 rw\n60 28 0:50 / /var/lib/docker/overlay2/x/merged rw - overlay "
        "overlay rw,lowerdir=/var/lib/docker/x\n");
    machine.link("/proc/self/ns/pid", "pid:[4026531836]");
    const file_tree empty;
    for (const file_tree* each : {&std::as_const(machine), &empty}) {
        const container_info info = look(*each);
        CHECK(!info.in_container);
        CHECK(info.evidence.empty());
        CHECK(info.runtime.empty());
        CHECK(info.findings.empty());
    }
}

TEST_CASE("container: each evidence file alone is enough to detect the container and its runtime") {
    const file_case cases[] = {
        {"/.dockerenv", "", "docker", false},
        {"/run/.containerenv", "", "podman", false},
        {"/run/.containerenv", "engine=\"podman-4.3.1\"\nname=\"x\"\n", "podman", false},
        {"/run/systemd/container", "systemd-nspawn\n", "systemd-nspawn", false},
        {"/run/systemd/container", "lxc\n", "lxc", false},
        {"/run/systemd/container", "something\n", "", false},
        {"/var/run/secrets/kubernetes.io/serviceaccount/namespace", "default", "kubernetes", false},
        {"/proc/1/environ", "A=1\0container=podman\0B=2\0"s, "podman"},
        {"/proc/1/environ", "container=lxc", "lxc"},
        {"/proc/1/environ", "container=oci\0"s, ""},
        {"/proc/1/environ", "container=podman\0container=lxc\0container=podman\0"s, "podman"},
        {"/proc/1/environ", "A=container=podman\0container=\0"s, nullptr},
        // One that names several runtimes is evidence for the one that schedules.
        {"/proc/self/cgroup", "2:cpu:/docker/" + id + "\n1:memory:/kubepods/pod1/" + id + "\n", "kubernetes"},
        {"/proc/self/mountinfo",
         mount_line("/", "/", "overlay overlay rw,lowerdir=/var/lib/docker/x") +
             mount_line("/var/lib/kubelet/pods/1/etc-hosts", "/etc/hosts", "ext4 x rw"),
         "kubernetes"}};
    for (const file_case& each : cases) check_file(each);
}

TEST_CASE("container: the cgroup paths of versions 1 and 2 identify the runtime") {
    const struct {
        const char* runtime;  // null: none, as of the runtimes themselves, and of similar names
        std::vector<std::string> paths;
    } cases[] = {{"docker", {"/docker/" + id, "/system.slice/docker-" + id + ".scope"}},
                 {"podman",
                  {"/machine.slice/libpod-" + id + ".scope/container",
                   "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + id + ".scope"}},
                 {"kubernetes",
                  {"/kubepods/besteffort/pod3e-1/" + id,
                   "/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:" + id,
                   "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-" +
                       id + ".scope"}},
                 {"containerd", {"/x:cri-containerd:" + id, "/system.slice/nerdctl-" + id + ".scope"}},
                 {"cri-o", {"/system.slice/crio-" + id + ".scope"}},
                 {"", {"/default/" + id, "/docker/buildkit/" + id}},
                 {"ecs", {"/ecs/task-1/" + id}},
                 {"lxc", {"/lxc/web", "/lxc.payload.web/init.scope"}},
                 {"systemd-nspawn", {"/machine.slice/systemd-nspawn@web.service/payload"}},
                 {"garden", {"/garden/abc"}},
                 {nullptr,
                  {"/system.slice/docker.service", "/system.slice/containerd.service",
                   "/machine.slice/libpod-conmon-" + id + ".scope", "/lxc.monitor.web", "/lxc", "/ecs",
                   "/docker/abc", "/docker-" + id.substr(1) + ".scope", "/docker-" + id + "a.scope",
                   "/default/" + id.substr(1), "/user.slice/nomad", "/", "/../../init.scope"}}};
    for (const auto& each : cases) {
        for (const std::string& path : each.paths) {
            check_file({"/proc/1/cgroup", "0::" + path + "\n", each.runtime});
            check_file({"/proc/self/cgroup", "0::" + path, each.runtime});
            check_file({"/proc/self/cgroup", "12:cpu,cpuacct:/\n4:memory:" + path + "\n1:name=systemd:/\n",
                        each.runtime});
        }
    }
}

TEST_CASE("container: mounts that only a runtime creates identify the runtime") {
    const auto overlay = [](const std::string& rest) {
        return mount_line("/", "/", "overlay overlay rw,lowerdir=" + rest);
    };
    const struct {
        const char* runtime;  // null: none
        std::vector<std::string> lines;
    } cases[] = {
        {"docker",
         {overlay("/var/lib/docker/overlay2/l/A,upperdir=/x"),
          mount_line("/var/lib/docker/btrfs/subvolumes/abc", "/", "btrfs /dev/sda rw"),
          mount_line("/var/lib/docker/containers/abc/hosts", "/etc/hosts", "ext4 /dev/sda rw")}},
        {"podman",
         {overlay("/srv/me/.local/share/containers/storage/overlay/l/A"),
          mount_line("/", "/",
                     "fuse.fuse-overlayfs fuse-overlayfs rw,lowerdir=/var/lib/containers/storage/x"),
          mount_line("/containers/storage/overlay-containers/a/userdata/hostname", "/etc/hostname",
                     "tmpfs tmpfs rw")}},
        {"containerd", {overlay("/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/1")}},
        {"kubernetes",
         {mount_line("/var/lib/kubelet/pods/1/etc-hosts", "/etc/hosts", "ext4 /dev/sda rw"),
          mount_line("/var/lib/kubelet/pods/1/containers/c/2", "/dev/termination-log", "ext4 /dev/sda rw")}},
        {nullptr,
         {mount_line("/", "/", "ext4 /dev/vda rw"), mount_line("/@", "/", "btrfs /dev/sda rw,subvol=/@"),
          mount_line("/hosts", "/etc/hosts", "ext4 /dev/sda rw"),
          mount_line("/var/lib/docker/volumes/v", "/data", "ext4 /dev/sda rw")}}};
    for (const auto& each : cases) {
        for (const std::string& line : each.lines) check_file({"/proc/self/mountinfo", line, each.runtime});
    }
}

TEST_CASE("container: a non-empty environment variable named container names the runtime") {
    file_tree tree;
    with_systemd(with_us(tree));
    const container_info podman = look(tree, {{"container", "podman"}});
    CHECK(podman.in_container);
    CHECK(podman.runtime == "podman");
    CHECK(podman.evidence == std::vector<std::string>{"container"});
    CHECK(look(tree, {{"container", ""}}).evidence.empty());
}

TEST_CASE(
    "container: the variables of a platform prove a container only if PID 1 is known to be no init system") {
    const struct {
        variables set;
        const char* runtime;
    } cases[] = {{{{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}}, "kubernetes"},
                 {{{"ECS_CONTAINER_METADATA_URI", "http://169.254.170.2/v3/secret"}}, "ecs"},
                 {{{"ECS_CONTAINER_METADATA_URI_V4", "http://169.254.170.2/v4/secret"}}, "ecs"},
                 {{{"AWS_EXECUTION_ENV", "AWS_ECS_FARGATE"}}, "ecs"},
                 {{{"K_SERVICE", "s"}, {"K_REVISION", "s-1"}}, "cloud-run"},
                 {{{"CLOUD_RUN_JOB", "j"}}, "cloud-run"},
                 {{{"CLOUD_RUN_WORKER_POOL", "p"}}, "cloud-run"},
                 {{{"NOMAD_ALLOC_ID", "1"}}, "nomad"},
                 {{{"NOMAD_TASK_NAME", "1"}}, "nomad"},
                 {{{"container", "mine"}}, ""},  // another program's variable
                 // Those that only look like a platform's are no hints.
                 {{{"AWS_EXECUTION_ENV", "AWS_Lambda_provided.al2"}}, nullptr},
                 {{{"AWS_EXECUTION_ENV", ""}}, nullptr},
                 {{{"K_SERVICE", "s"}}, nullptr},
                 {{{"K_SERVICE", "s"}, {"K_REVISION", ""}}, nullptr},
                 {{{"K_REVISION", "s-1"}}, nullptr}};
    for (const auto& each : cases) {
        file_tree machine;
        with_systemd(with_us(machine));
        CHECK(!look(machine, each.set).in_container);
        CHECK(look(machine, each.set).evidence.size() == (each.runtime != nullptr ? 1 : 0));
        if (each.runtime == nullptr) continue;
        file_tree unknown;
        CHECK(!look(unknown, each.set).in_container);
        CHECK(look(unknown, each.set, 1).in_container);  // we are PID 1
        CHECK(look(unknown, each.set, 1).runtime == each.runtime);
        file_tree shell;
        with_us(shell).process("1", 1, 0, "sh", "/bin/sh|-c|./worker");
        const container_info info = look(shell, each.set);
        CHECK(info.in_container == has_proc);
        CHECK(info.runtime == each.runtime);
        CHECK(!holds(info.evidence[0], "secret"));
    }
}

TEST_CASE("container: with evidence of several platforms, the platform that stops the process is named") {
    const variables fargate = {{"ECS_CONTAINER_METADATA_URI_V4", "http://169.254.170.2/v4/x"},
                               {"AWS_EXECUTION_ENV", "AWS_ECS_FARGATE"}};
    const variables knative = {{"K_SERVICE", "s"}, {"K_REVISION", "s-1"}};
    const variables knative_pod = {
        {"K_SERVICE", "s"}, {"K_REVISION", "s-1"}, {"KUBERNETES_SERVICE_HOST", "10.0.0.1"}};
    const struct {
        const char* file;  // evidence that comes first, as it is conclusive
        variables set;
        const char* runtime;
    } cases[] = {{"/.dockerenv", {}, "docker"},
                 {"/.dockerenv", fargate, "ecs"},
                 {"/run/.containerenv", fargate, "ecs"},
                 {"/.dockerenv", knative, "cloud-run"},
                 {"/.dockerenv", knative_pod, "kubernetes"},
                 {"/var/run/secrets/kubernetes.io/serviceaccount/namespace", knative, "kubernetes"},
                 {"/.dockerenv", {{"NOMAD_ALLOC_ID", "1"}, {"NOMAD_TASK_NAME", "w"}}, "nomad"},
                 {"/.dockerenv", {{"NOMAD_ALLOC_ID", "1"}, {"KUBERNETES_SERVICE_HOST", "h"}}, "kubernetes"},
                 {"/.dockerenv", {{"container", "podman"}}, "docker"},
                 {"/run/.containerenv", {{"container", "lxc"}}, "podman"}};
    for (const auto& each : cases) {
        CAPTURE(each.file);
        file_tree tree;
        tree.file(each.file, "");
        CHECK(look(tree, each.set).runtime == each.runtime);
    }
}

TEST_CASE("container: hints in /proc prove a container if PID 1 is a shell, but not if PID 1 is systemd") {
    if (!has_proc) return;
    using change = void (*)(file_tree&);
    const change hints[] = {
        [](file_tree& tree) { tree.link("/proc/self/ns/pid", "pid:[4026532181]"); },
        [](file_tree& tree) {
            tree.file("/proc/self/mountinfo", mount_line("/", "/", "overlay overlay rw,lowerdir=/live"));
        },
        [](file_tree& tree) { tree.file("/proc/self/cgroup", "0::/nomad/alloc-1.scope\n"); }};
    for (const change& add : hints) {
        CAPTURE(&add - hints);
        file_tree machine;
        add(with_systemd(with_us(machine)));
        CHECK(!look(machine).in_container);
        CHECK(look(machine).evidence.size() == 1);
        file_tree shell;
        add(with_us(shell).process("1", 1, 0, "sh", "/bin/sh|-c|./worker"));
        CHECK(look(shell).in_container);
    }
}

TEST_CASE("container: all evidence is listed, strongest first, and the scheduler is named as the runtime") {
    file_tree tree;
    with_us(tree).process("1", 1, 0, "worker", "./worker", "worker");
    tree.file("/.dockerenv", "").file("/proc/self/cgroup", "0::/docker/" + id + "\n");
    tree.link("/proc/self/ns/pid", "pid:[4026532181]");
    CHECK(look(tree).runtime == "docker");
    const container_info info =
        look(tree, {{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}, {"container", "docker"}});
    CHECK(info.in_container);
    CHECK(info.runtime == "kubernetes");
    const std::vector<std::string> expected =
        has_proc ? std::vector<std::string>{"/.dockerenv", "container", "/proc/self/cgroup",
                                            "KUBERNETES_SERVICE_HOST", "/proc/self/ns/pid"}
                 : std::vector<std::string>{"/.dockerenv", "container", "KUBERNETES_SERVICE_HOST"};
    CHECK(info.evidence == expected);
}

TEST_CASE("container: unreadable or irregular files are no evidence and no error") {
    const char* const paths[] = {"/.dockerenv",          "/run/.containerenv", "/run/systemd/container",
                                 "/proc/1/environ",      "/proc/1/comm",       "/proc/1/cmdline",
                                 "/proc/1/stat",         "/proc/1/cgroup",     "/proc/self/cgroup",
                                 "/proc/self/mountinfo", "/proc/self/stat"};
    for (const char* path : paths) {
        CAPTURE(path);
        file_tree fifo, folder, dangling, loop;
        CHECK(!look(fifo.fifo(path)).in_container);
        CHECK(!look(folder.folder(path)).in_container);
        CHECK(!look(dangling.link(path, "/nowhere/at/all")).in_container);
        CHECK(!look(loop.link(path, loop.root() + path)).in_container);
    }
    file_tree file_for_folder;
    file_for_folder.file("/proc", "").file("/run", "").file("/var", "");
    CHECK(!look(file_for_folder).in_container);
}

TEST_CASE("container: evidence after the first 64 KiB of a file is not looked at") {
    for (const bool is_late : {false, true}) {
        file_tree tree;
        with_systemd(with_us(tree))
            .file("/proc/self/cgroup",
                  std::string(is_late ? 70000 : 60000, '\n') + "0::/docker/" + id + "\n");
        CHECK(look(tree).in_container == (has_proc && !is_late));
    }
}
