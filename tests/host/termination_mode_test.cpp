// What the termination-mode file says, and that nothing it may be instead of a file blocks or crashes.
#include <sys/socket.h>
#include <sys/un.h>

#include "test.hpp"

namespace {
// A folder of its own, gone with all in it at the end.
struct folder {
    termination_mode with(const std::string& content) const {
        std::ofstream(file, std::ios::binary | std::ios::trunc) << content;
        return ojs::read_termination_mode(file);
    }
    const test::temporary_folder own;
    const std::string path = own.path();
    const std::string file = own.file("termination-type");
};

void check_reclaim(const termination_mode& mode, termination_evidence evidence, const std::string& text) {
    CAPTURE(mode.found);
    CHECK(mode.evidence == evidence);
    CHECK(mode.is_reclaim());
    CHECK(mode.found.find(text) != std::string::npos);
    CHECK(mode.found.find('\n') == std::string::npos);
    CHECK(mode.found.size() < 400);
}
}  // namespace

// [Spot file NORMAL_SHUTDOWN]
TEST_CASE("termination mode: NORMAL_SHUTDOWN with white space around it is a normal stop") {
    const folder here;
    for (const char* text : {"NORMAL_SHUTDOWN", "NORMAL_SHUTDOWN\n", "  NORMAL_SHUTDOWN\r\n\n\t"}) {
        CAPTURE(text);
        const termination_mode mode = here.with(text);
        CHECK(mode.evidence == termination_evidence::normal);
        CHECK_FALSE(mode.is_reclaim());
        CHECK(mode.found == "File " + here.file + " contains NORMAL_SHUTDOWN");
    }
}

// [Spot file missing]
TEST_CASE("termination mode: SPOT_RECLAIM or a missing file is a reclaim") {
    const folder here;
    const termination_mode reclaim = here.with("SPOT_RECLAIM\n");
    check_reclaim(reclaim, termination_evidence::reclaim, "File " + here.file + " contains 'SPOT_RECLAIM'");
    // Put there by another name, it is new whatever the time of its content.
    const timespec old[] = {{1000000000, 0}, {1000000000, 0}};
    REQUIRE(::utimensat(AT_FDCWD, here.file.c_str(), old, 0) == 0);
    CHECK(ojs::read_termination_mode(here.file).changed_ms >= reclaim.changed_ms);
    CHECK(::unlink(here.file.c_str()) == 0);
    check_reclaim(ojs::read_termination_mode(here.file), termination_evidence::missing,
                  "File " + here.file + " not found");
    check_reclaim(ojs::read_termination_mode(here.file + "/below"), termination_evidence::missing, "not found");
    check_reclaim(ojs::read_termination_mode(""), termination_evidence::missing, "not found");
}

// [Spot file, any other value]
TEST_CASE("termination mode: content other than NORMAL_SHUTDOWN is a reclaim, and the message describes it") {
    const folder here;
    const std::string large(10 << 20, ' ');
    const std::pair<std::string, std::string> contents[] = {
        {"", "contains ''"},
        {"normal_shutdown", "'normal_shutdown'"},
        {"NORMAL_SHUTDOWN NORMAL_SHUTDOWN", "contains"},
        {"NORMAL_SHUTDOWN\nSPOT_RECLAIM\n", "contains"},
        {std::string("NORMAL_SHUTDOWN\0", 16), "contains 'NORMAL_SHUTDOWN"},
        {"\xff\xfe\x1b[31m", "contains"},
        {std::string(3, '\0'), "contains"},
        {"x" + large, "more than 4 KiB"},
        {"NORMAL_SHUTDOWN" + large, "more than 4 KiB"}};  // the word is there, and then more than anybody reads
    for (const auto& [content, text] : contents) check_reclaim(here.with(content), termination_evidence::other, text);
    CHECK_FALSE(here.with("NORMAL_SHUTDOWN" + std::string(4081, '\n')).is_reclaim());  // 4096 bytes
}

void check_unreadable(const std::string& path, const std::string& text = "not a regular file") {
    check_reclaim(ojs::read_termination_mode(path), termination_evidence::unreadable, text);
}

// [Spot file, any other value]
TEST_CASE("termination mode: a FIFO, folder, device or socket counts as a reclaim and is not read") {
    const folder here;
    for (const char* path : {"/dev/zero", "/dev/null", "/dev/urandom"}) check_unreadable(path);
    check_unreadable(here.path);
    REQUIRE(::mkfifo(here.file.c_str(), 0600) == 0);
    check_unreadable(here.file);
    REQUIRE(::unlink(here.file.c_str()) == 0);
    const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    here.file.copy(name.sun_path, sizeof name.sun_path - 1);
    REQUIRE(::bind(listener, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0);
    check_unreadable(here.file);
    ::close(listener);
}

TEST_CASE("termination mode: a file that cannot be opened counts as a reclaim, with the cause in the message") {
    const folder here;
    if (::geteuid() != 0) {  // root may read everything
        here.with("NORMAL_SHUTDOWN");
        REQUIRE(::chmod(here.file.c_str(), 0) == 0);
        check_unreadable(here.file, "Permission denied");
        REQUIRE(::unlink(here.file.c_str()) == 0);
    }
    REQUIRE(::symlink(here.file.c_str(), here.file.c_str()) == 0);
    check_unreadable(here.file, "cannot be read");
    check_unreadable("/tmp/" + std::string(5000, 'n'), "cannot be read");
}

// [Spot file's owner]
TEST_CASE("termination mode: a file is obeyed if it is root's or the effective user's") {
    if (::geteuid() != 0) {
        MESSAGE("skipped: only root may give a file to somebody else");
        return;
    }
    constexpr uid_t somebody = 65533;
    const folder here;
    here.with("NORMAL_SHUTDOWN");
    REQUIRE(::chown(here.file.c_str(), somebody, static_cast<gid_t>(-1)) == 0);
    check_unreadable(here.file, " belongs to user 65533 and counts as not found");
    REQUIRE(::chmod(here.path.c_str(), 0755) == 0);
    REQUIRE(::seteuid(somebody) == 0);
    const termination_mode own = ojs::read_termination_mode(here.file);
    REQUIRE(::seteuid(0) == 0);
    CHECK_FALSE(own.is_reclaim());
    REQUIRE(::chown(here.file.c_str(), 0, static_cast<gid_t>(-1)) == 0);
    REQUIRE(::seteuid(somebody) == 0);
    const termination_mode roots = ojs::read_termination_mode(here.file);
    REQUIRE(::seteuid(0) == 0);
    CHECK_FALSE(roots.is_reclaim());
}
