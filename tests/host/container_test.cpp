// The platform that stops the process, by its files and variables.
#include "findings.hpp"

using namespace test;
using namespace ojs::detail;

namespace {
// "docker in a container"; "": no platform.
std::string look(const file_tree& tree, const variables& set = {}) {
    const container_info info = detect_container(probe(tree.root(), set));
    return (info.platform != nullptr ? info.platform->id : std::string()) +
           (info.in_container ? " in a container" : "");
}
}  // namespace

TEST_CASE("container: each file or variable of a platform identifies it") {
    const struct {
        const char* evidence;
        const char* value;
        const char* found;
    } cases[] = {{"/var/run/secrets/kubernetes.io/serviceaccount/namespace", "", "kubernetes in a container"},
                 {"KUBERNETES_SERVICE_HOST", "10.0.0.1", "kubernetes in a container"},
                 {"ECS_CONTAINER_METADATA_URI", "http://169.254.170.2/v3/x", "ecs in a container"},
                 {"ECS_CONTAINER_METADATA_URI_V4", "http://169.254.170.2/v4/x", "ecs in a container"},
                 {"AWS_EXECUTION_ENV", "AWS_ECS_EC2", "ecs in a container"},
                 {"AWS_EXECUTION_ENV", "AWS_Lambda_provided.al2", ""},
                 {"AWS_EXECUTION_ENV", "", ""},
                 {"K_REVISION", "s-1", "cloud-run in a container"},
                 {"K_SERVICE", "s", ""},
                 {"CLOUD_RUN_JOB", "j", "cloud-run in a container"},
                 {"CLOUD_RUN_WORKER_POOL", "p", "cloud-run in a container"},
                 {"NOMAD_ALLOC_ID", "1", "nomad"},
                 {"FLY_MACHINE_ID", "1", "fly"},
                 {"DYNO", "worker.1", "heroku"},
                 {"/.dockerenv", "", "docker in a container"},
                 {"/run/.containerenv", "", "podman in a container"},
                 {"/run/systemd/container", "lxc", "container in a container"},
                 {"container", "podman", "podman in a container"},
                 {"container", "lxc-libvirt", "container in a container"},
                 {"container", "mine", ""},
                 {"container", "", ""}};
    for (const auto& each : cases) {
        CAPTURE(each.evidence);
        file_tree tree;
        const bool is_file = each.evidence[0] == '/';
        if (is_file) tree.file(each.evidence, each.value);
        CHECK(look(tree, is_file ? variables{} : variables{{each.evidence, each.value}}) == each.found);
    }
    CHECK(look(file_tree()).empty());
}

TEST_CASE("container: with evidence of several platforms, the platform that stops the process is named") {
    file_tree docker;
    docker.file("/.dockerenv", "");
    CHECK(look(docker, {{"ECS_CONTAINER_METADATA_URI_V4", "x"}}) == "ecs in a container");
    CHECK(look(docker, {{"K_REVISION", "s-1"}}) == "cloud-run in a container");
    CHECK(look(docker, {{"K_REVISION", "s-1"}, {"KUBERNETES_SERVICE_HOST", "10.0.0.1"}}) ==
          "kubernetes in a container");
    CHECK(look(docker, {{"NOMAD_ALLOC_ID", "1"}}) == "nomad in a container");
    CHECK(look(docker, {{"FLY_MACHINE_ID", "1"}}) == "fly in a container");
    CHECK(look(docker, {{"container", "podman"}}) == "docker in a container");
}
