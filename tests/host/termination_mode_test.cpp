// What the termination-mode file says, and that nothing it may be instead of a file blocks or crashes.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "events.hpp"
#include "files.hpp"
#include "test.hpp"

using ojs::termination_evidence;
using ojs::termination_mode;

namespace {

// Again, if a pause of the whole machine took the second in which a file must answer.
termination_mode read_mode(const std::string& path) {
    for (const auto end = ojs::deadline_after(test::hang_guard);;) {
        termination_mode mode = ojs::read_termination_mode(path);
        if (mode.found.find(" does not answer") == std::string::npos || ojs::steady_clock::now() > end)
            return mode;
    }
}

// A folder of its own, gone with all in it at the end.
struct folder {
    termination_mode with(const std::string& content) const {
        std::ofstream(file, std::ios::binary | std::ios::trunc) << content;
        return read_mode(file);
    }
    const test::temporary_folder own;
    const std::string path = own.path();
    const std::string file = own.file("termination-type");
};

void check_reclaim(const termination_mode& mode, termination_evidence evidence, const std::string& text) {
    CAPTURE(mode.message);
    CHECK(mode.evidence == evidence);
    CHECK(mode.is_reclaim());
    CHECK(mode.message.find(text) != std::string::npos);
    CHECK(mode.message.find('\n') == std::string::npos);
    CHECK(mode.message.size() < 400);
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
        CHECK(mode.message == "File " + here.file + " contains NORMAL_SHUTDOWN, using graceful shutdown");
    }
}

// [Spot file missing]
TEST_CASE("termination mode: SPOT_RECLAIM or a missing file is a reclaim, with the message of the guide") {
    const folder here;
    const termination_mode reclaim = here.with("SPOT_RECLAIM\n");
    check_reclaim(reclaim, termination_evidence::reclaim,
                  "File " + here.file + " contains 'SPOT_RECLAIM', treating as spot instance reclaim");
    CHECK(reclaim.found == "File " + here.file + " contains 'SPOT_RECLAIM'");
    // Put there by another name, it is new whatever the time of its content.
    const timespec old[] = {{1000000000, 0}, {1000000000, 0}};
    REQUIRE(::utimensat(AT_FDCWD, here.file.c_str(), old, 0) == 0);
    CHECK(read_mode(here.file).changed_ms >= reclaim.changed_ms);
    CHECK(::unlink(here.file.c_str()) == 0);
    check_reclaim(read_mode(here.file), termination_evidence::missing,
                  "File " + here.file + " not found, defaulting to spot instance reclaim mode");
    check_reclaim(read_mode(here.file + "/below"), termination_evidence::missing, "not found");
    check_reclaim(read_mode(""), termination_evidence::missing, "not found");
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
        {"NORMAL_SHUTDOWN" + large,
         "more than 4 KiB"}};  // the word is there, and then more than anybody reads
    for (const auto& [content, text] : contents)
        check_reclaim(here.with(content), termination_evidence::other, text);
    CHECK_FALSE(here.with("NORMAL_SHUTDOWN" + std::string(4081, '\n')).is_reclaim());  // 4096 bytes
}

void check_unreadable(const std::string& path, const std::string& text = "not a regular file") {
    check_reclaim(read_mode(path), termination_evidence::unreadable, text);
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

TEST_CASE(
    "termination mode: a file that cannot be opened counts as a reclaim, with the cause in the message") {
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
TEST_CASE("termination mode: another user's file is obeyed only if no third user can write or replace it") {
    if (::geteuid() != 0) {
        MESSAGE("skipped: only root may give a file to somebody else");
        return;
    }
    constexpr uid_t somebody = 65533;
    constexpr uid_t other = 65532;
    struct {
        mode_t folder;
        uid_t folder_owner;
        mode_t file;
        bool is_obeyed;
    } const rows[] = {{0755, 0, 0644, true},         {01777, 0, 0644, true}, {0755, somebody, 0600, true},
                      {01777, somebody, 0644, true}, {0777, 0, 0644, false}, {0775, 0, 0644, false},
                      {0755, other, 0644, false},    {0755, 0, 0666, false}, {0755, 0, 0664, false}};
    const folder here;
    here.with("NORMAL_SHUTDOWN");
    const auto give = [](const std::string& path, uid_t user, mode_t mode) {
        REQUIRE(::chown(path.c_str(), user, static_cast<gid_t>(-1)) == 0);
        REQUIRE(::chmod(path.c_str(), mode) == 0);
    };
    for (const auto& row : rows) {
        CAPTURE(row.folder);
        CAPTURE(row.file);
        give(here.path, row.folder_owner, row.folder);
        give(here.file, somebody, row.file);
        CHECK(read_mode(here.file).is_reclaim() != row.is_obeyed);
    }
    check_reclaim(read_mode(here.file), termination_evidence::other_owner,
                  " belongs to user 65533, others can write or replace it, and it counts as not found");
    // Through a link, which anybody may have put there.
    give(here.path, 0, 01777);
    give(here.file, somebody, 0644);
    REQUIRE(::symlink(here.file.c_str(), (here.file + ".link").c_str()) == 0);
    CHECK(read_mode(here.file + ".link").is_reclaim());
    give(here.file, 0, 0644);
    CHECK_FALSE(read_mode(here.file + ".link").is_reclaim());
    REQUIRE(::seteuid(other) == 0);  // root's file, for a user without rights
    const termination_mode mode = read_mode(here.file);
    REQUIRE(::seteuid(0) == 0);
    CHECK_FALSE(mode.is_reclaim());
}
