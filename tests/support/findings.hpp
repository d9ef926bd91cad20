// Findings of start-up, doctor() and detect_container() in a made-up root, and searches for one of them.
#pragma once
#include "file_tree.hpp"

namespace test {
// We are process 7 there, called ./worker, started by `parent`.
inline file_tree& with_us(file_tree& tree, int parent = 1) {
    tree.process("self", 7, parent, "worker", "./worker", "worker");
    return tree.process("7", 7, parent, "worker", "./worker", "worker");
}

// In a root of nothing, unless one is given: no container, and no variables but these.
inline ojs::detail::container_probe probe(const std::string& root = "/nowhere", const variables& set = {},
                                          pid_t pid = 7) {
    ojs::detail::container_probe out;
    out.root = root;
    out.environment = lookup(set);
    out.pid = pid;
    return out;
}

inline ojs::worker_options quiet_options() {
    ojs::worker_options out;
    out.url = "memory:";
    out.transports.add(ojs::memory());
    return out;
}

inline const ojs::finding* find(const std::vector<ojs::finding>& all, const std::string& id) {
    for (const ojs::finding& each : all) {
        if (each.id == id) return &each;
    }
    return nullptr;
}

inline void check_found(const std::vector<ojs::finding>& all, const char* id, ojs::severity level, const char* what) {
    CAPTURE(id);
    CAPTURE(format_findings(all));
    const ojs::finding* found = find(all, id);
    REQUIRE(found != nullptr);
    CHECK(found->severity == level);
    CHECK(holds(found->problem, what));
    CHECK((level == ojs::severity::info || !found->fix.empty()));
}
}  // namespace test
