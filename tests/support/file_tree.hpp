// A scratch folder made into the root of a file system: /proc, marker files, and what else a test wants there.
#pragma once
#include "test.hpp"

namespace test {
class file_tree {
  public:
    const std::string& root() const { return root_; }
    file_tree& file(const std::string& path, const std::string& content) {
        std::ofstream out(place(path), std::ios::binary);
        out << content;
        REQUIRE(out);
        return *this;
    }
    file_tree& fifo(const std::string& path) {
        REQUIRE(::mkfifo(place(path).c_str(), 0600) == 0);
        return *this;
    }
    file_tree& link(const std::string& path, const std::string& target) {
        REQUIRE(::symlink(target.c_str(), place(path).c_str()) == 0);
        return *this;
    }
    // A process as /proc shows it; `command` has its NULs as '|'. `exe` is made up, and the same for the same name.
    file_tree& process(const std::string& id, int pid, int parent, const std::string& comm, std::string command,
                       const std::string& exe = "", int session = 1) {
        for (char& each : command) each = each == '|' ? '\0' : each;
        const std::string folder = "/proc/" + id + "/";
        file(folder + "stat", std::to_string(pid) + " (" + comm + ") S " + std::to_string(parent) + " 1 " +
                                  std::to_string(session) + " 0");
        file(folder + "comm", comm + "\n");
        file(folder + "cmdline", command + std::string(1, '\0'));
        if (!exe.empty()) {
            file("/exe/" + exe, "");
            link(folder + "exe", root_ + "/exe/" + exe);
        }
        return *this;
    }

  private:
    std::string place(const std::string& path) {
        std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
        return root_ + path;
    }
    temporary_folder folder_;
    const std::string root_ = folder_.path();
};

using variables = std::map<std::string, std::string>;

inline ojs::environment_lookup lookup(variables set) {
    return [set = std::move(set)](const char* name) -> const char* {
        const auto found = set.find(name);
        return found == set.end() ? nullptr : found->second.c_str();
    };
}
}  // namespace test
