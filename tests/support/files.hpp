// Files: a folder that is gone afterwards, and whole files to and from text.
#pragma once
#include <errno.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>

namespace test {
// A folder of its own, removed at the end with all in it, unless OJS_TEST_KEEP is set.
class temporary_folder {
  public:
    temporary_folder() { make_in({"/tmp"}); }
    // For many files: in memory where there is a place for that.
    enum class kind { in_memory };
    explicit temporary_folder(kind) { make_in({"/dev/shm", "/tmp"}); }
    temporary_folder(const temporary_folder&) = delete;
    temporary_folder& operator=(const temporary_folder&) = delete;
    ~temporary_folder() {
        std::error_code ignored;
        if (::getenv("OJS_TEST_KEEP") == nullptr) std::filesystem::remove_all(path_, ignored);
    }

    const std::filesystem::path& path() const { return path_; }
    std::string file(const std::string& name) const { return path_ / name; }

  private:
    // Throws: REQUIRE does not work before the first test, where tests decide what to skip.
    void make_in(std::initializer_list<const char*> places) {
        for (const char* place : places) {
            std::string name = std::string(place) + "/ojs-test-XXXXXX";
            if (::mkdtemp(name.data()) == nullptr) continue;
            path_ = name;
            return;
        }
        throw std::system_error(errno, std::generic_category(), "a temporary folder");
    }

    std::filesystem::path path_;
};

// Empty where there is none.
inline std::string read_file(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The first block of this language in a document; empty where there is no document.
inline std::string block_of(const std::string& document, const std::string& language) {
    const auto root = std::filesystem::path(__FILE__).parent_path() / "../..";
    const std::string text = read_file(root / document);
    const std::string fence = "```" + language + "\n";
    const std::size_t at = text.find(fence);
    if (at == std::string::npos) return "";
    return text.substr(at + fence.size(), text.find("```", at + fence.size()) - at - fence.size());
}

inline void write_file(const std::filesystem::path& path, std::string_view text) {
    std::ofstream(path, std::ios::binary) << text;
}
}  // namespace test
