// http_server, a draining_server with a thread per connection: its limits and threads, unix sockets, and stop().
#include <sys/file.h>
#include <sys/un.h>

#include <ctime>
#include <future>

#include "files.hpp"
#include "processes.hpp"
#include "server_clients.hpp"
#include "text.hpp"

using namespace ojs;
using namespace std::chrono_literals;
using namespace test;

namespace {

http_server start(http_handler handler = &echo, http_server_options options = {},
                  const std::string& address = "0") {
    return started_server<http_server>(std::move(handler), options, address);
}

http_server_options with_connections(std::size_t count) {
    http_server_options out;
    out.max_connections = count;
    out.idle_timeout = out.request_timeout = 1h;
    return out;
}

// The socket of a process that may have died since.
int bound_socket(const std::string& path, int type = SOCK_STREAM) {
    const int fd = ::socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    return fd;
}

TEST_CASE("http_server: connections beyond max_connections wait until a busy one closes after its response") {
    gate held{"/", {}, {}};
    const http_server server = start(held.handler(), with_connections(1));
    sent busy(server);
    CHECK(held.entered.wait_for(1));
    sent waiting(server);
    CHECK_FALSE(peer::readable(waiting.fd, 100));  // a wrong server has answered by now
    held.may_go.set();
    for (sent* each : {&busy, &waiting}) CHECK(each->status() == "200");
    CHECK(busy.closed());
    std::atomic<int> good{0};
    at_once(8, [&](int) {
        for (int n = 0; n < 20; ++n) good += sent(server).status() == "200" ? 1 : 0;
    });
    CHECK(good == 160);
    CHECK(held.entered.highest() == 1);
}

TEST_CASE("http_server: at max_connections without idle connections, the slowest client is disconnected") {
    http_server_options options = with_connections(2);
    options.overload_timeout = 50ms;
    const std::string half = get().substr(0, get().size() - 2);
    for (const std::string& text : {half, std::string()}) {  // one that says nothing is slow as well
        const http_server server = start(&echo, options);
        const sent slowest(server, text);
        sent slow(server, half);
        CHECK(sent(server).status() == "200");
        CHECK(slowest.closed());
        slow.send("\r\n");  // younger, and still has its place
        CHECK(slow.status() == "200");
    }
}

TEST_CASE(
    "http_server: a connection that has sent only empty lines, at first or after a request, counts as idle") {
    const http_server server = start(&echo, with_connections(1));
    const sent stranger(server, "\r\n");
    sent kept(server);
    CHECK(kept.status() == "200");
    CHECK(stranger.closed());
    kept.send("\r\n");
    CHECK(sent(server).status() == "200");
    CHECK(kept.closed());
}

TEST_CASE("http_server: without free descriptors the server waits without spinning and recovers") {
    const http_server server = start();
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    {
        const no_descriptors from_here;
        const sockaddr_in address = peer::loopback(server.port());
        CHECK(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
        peer::send_text(fd, get());
        const std::clock_t before = std::clock();
        CHECK_FALSE(peer::readable(fd, 500));
        CHECK(std::clock() - before < CLOCKS_PER_SEC / 4);
    }
    CHECK(status_of(peer::read_message(fd)) == "200");
    ::close(fd);
}

TEST_CASE("http_server: stop() cuts connections at its deadline and then waits for the handler") {
    gate held{"/", {}, {}};
    http_server server = start(held.handler());
    sent busy(server);
    REQUIRE(held.entered.wait_for(1));
    auto stops = std::async(std::launch::async, [&] { return server.stop(time_point{}); });
    CHECK(busy.rest() == "");  // cut
    CHECK(stops.wait_for(0s) == std::future_status::timeout);
    held.may_go.set();
    CHECK(stops.get() == 1);
}

TEST_CASE("http_server: an IPv6 address is served, and a client reaches it directly and through localhost") {
    const peer::reserved_port port;
    const result<http_server> server = http_server::start("[::1]:" + port.text(), &echo);
    if (!server) {
        MESSAGE("skipped: ", server.error().text);
        return;
    }
    CHECK(server->address() == "[::1]:" + std::to_string(server->port()));
    const http_request request = peer::get("/six");
    CHECK(peer::make_client("http://" + server->address()).send(request, peer::call())->body == "GET /six ");
    // localhost is 127.0.0.1 first, where nobody listens on that port, and then ::1
    const std::string url = "http://localhost:" + std::to_string(server->port());
    CHECK(peer::make_client(url).send(request, peer::call())->body == "GET /six ");
}

TEST_CASE("http_server: a unix socket has mode 0600, a second server gets busy, and the end removes it") {
    const temporary_folder here;
    const std::string path = here.file("sock");
    {
        const http_server server = start(&echo, {}, "unix:" + path);
        CHECK(server.address() == "unix:" + path);
        CHECK(server.port() == 0);
        struct stat found {};
        REQUIRE(::stat(path.c_str(), &found) == 0);
        CHECK((found.st_mode & 0777U) == 0600U);
        http_client client = peer::make_client("unix:" + path);
        for (int i = 0; i < 3; ++i) CHECK(client.send(peer::get("/u"), peer::call())->body == "GET /u ");
        CHECK(code_of(http_server::start("unix:" + path, &echo)) == errc::busy);
        CHECK(client.send(peer::get("/u"), peer::call()));
    }
    CHECK(::access(path.c_str(), F_OK) != 0);
}

// A folder of its own, with a path in it, gone afterwards.
struct own_folder {
    ~own_folder() {
        ::unlink(path.c_str());
        CHECK(std::filesystem::is_empty(own.path()));  // nothing was left beside it
    }
    void leave_dead_socket() const { ::close(bound_socket(path)); }
    ino_t inode() const {
        struct stat found {};
        return ::lstat(path.c_str(), &found) == 0 ? found.st_ino : 0;
    }
    result<http_server> serve() const { return http_server::start("unix:" + path, &echo); }

    const temporary_folder own;
    const std::string path = own.file("s");
};

TEST_CASE(
    "http_server: a unix path that is not a dead socket's file is refused with busy and stays unchanged") {
    const own_folder folder;
    const std::string other = folder.own.file("other");
    int fd = -1;
    const std::function<void()> all[] = {
        [&] { write_file(folder.path, ""); },
        [&] { REQUIRE(::symlink("other", folder.path.c_str()) == 0); },  // to nothing
        [&] {
            folder.leave_dead_socket();
            REQUIRE(::rename(folder.path.c_str(), other.c_str()) == 0);
            REQUIRE(::symlink("other", folder.path.c_str()) == 0);  // to a dead socket
        },
        [&] { REQUIRE(::mkfifo(folder.path.c_str(), 0600) == 0); },
        [&] { fd = bound_socket(folder.path); },  // it has yet to listen
        [&] {
            fd = bound_socket(folder.path);
            REQUIRE(::listen(fd, 1) == 0);
        },
        [&] { fd = bound_socket(folder.path, SOCK_DGRAM); },
        [&] { fd = bound_socket(folder.path, SOCK_SEQPACKET); }};
    for (const auto& make : all) {
        CAPTURE(&make - all);
        make();
        const ino_t before = folder.inode();
        CHECK(before != 0);
        CHECK(code_of(folder.serve()) == errc::busy);
        CHECK(folder.inode() == before);
        if (fd >= 0) ::close(fd);
        fd = -1;
        ::unlink(folder.path.c_str());
        ::unlink(other.c_str());
    }
}

TEST_CASE("http_server: a unix path in a folder that other users can change is refused") {
    const own_folder folder;
    const auto serve_at = [&](mode_t mode, uid_t owner) {
        REQUIRE(::chmod(folder.own.path().c_str(), mode) == 0);
        REQUIRE(::chown(folder.own.path().c_str(), owner, gid_t(-1)) == 0);
        return code_of(folder.serve());
    };
    for (const mode_t mode : {0777, 0770, 0720}) CHECK(serve_at(mode, ::getuid()) == errc::invalid_argument);
    for (const mode_t mode : {01777, 0755, 0700}) CHECK(serve_at(mode, ::getuid()) == std::nullopt);
    const mode_t before = ::umask(0777);
    result<http_server> server = folder.serve();
    ::umask(before);
    REQUIRE(server);
    CHECK(std::filesystem::status(folder.path).permissions() == std::filesystem::perms(0600));
    server->stop(peer::soon());
    if (::getuid() != 0) return;
    CHECK(serve_at(01777, 65534) == errc::invalid_argument);
    CHECK(serve_at(0700, 0) == std::nullopt);
    const std::string link =
        folder.own.path().string() + ".link";  // another user's, who may point it elsewhere
    REQUIRE(::symlink(folder.own.path().c_str(), link.c_str()) == 0);
    CHECK(code_of(http_server::start("unix:" + link + "/s", &echo)) == std::nullopt);
    REQUIRE(::lchown(link.c_str(), 65534, 65534) == 0);
    CHECK(code_of(http_server::start("unix:" + link + "/s", &echo)) == errc::invalid_argument);
    ::unlink(link.c_str());
}

TEST_CASE("http_server: another file has replaced its unix socket -> stop() leaves that file in place") {
    const own_folder folder;
    result<http_server> server = folder.serve();
    REQUIRE(server);
    REQUIRE(::unlink(folder.path.c_str()) == 0);
    write_file(folder.path, "another's");
    const ino_t another = folder.inode();
    server->stop(peer::soon());
    CHECK(folder.inode() == another);
}

TEST_CASE("http_server: exactly one of several concurrent servers takes over a dead socket's file") {
    const own_folder folder;
    for (int round = 0; round < 300; ++round) {
        folder.leave_dead_socket();
        std::vector<result<http_server>> servers;
        for (int i = 0; i < 4; ++i) servers.emplace_back(error{errc::system, 0, ""});
        at_once(4, [&](int i) { servers[static_cast<std::size_t>(i)] = folder.serve(); });
        int owners = 0;
        for (const auto& server : servers) {
            owners += server ? 1 : 0;
            CHECK(code_of(server).value_or(errc::busy) == errc::busy);
        }
        REQUIRE(owners == 1);
        CHECK(peer::make_client("unix:" + folder.path).send(peer::get("/u"), peer::call()));
    }
}

TEST_CASE("http_server: a unix path is bound or taken over only if its lock file is free and empty") {
    const own_folder folder;
    const std::string lock = folder.path + ".ojs-lock";
    const std::string other = folder.own.file("other");
    folder.leave_dead_socket();
    const ino_t dead = folder.inode();
    write_file(lock, "");
    const int holder = ::open(lock.c_str(), O_RDONLY | O_CLOEXEC);
    REQUIRE(::flock(holder, LOCK_EX) == 0);
    REQUIRE(::rename(folder.path.c_str(), other.c_str()) == 0);
    result<http_server> server = folder.serve();
    REQUIRE(code_of(server) == errc::busy);
    CHECK(folder.inode() == 0);
    REQUIRE(::rename(other.c_str(), folder.path.c_str()) == 0);
    server = folder.serve();
    REQUIRE(code_of(server) == errc::busy);
    CHECK(folder.inode() == dead);
    ::close(holder);
    write_file(lock, "somebody's");
    server = folder.serve();
    REQUIRE_FALSE(server);
    CHECK(::access(lock.c_str(), F_OK) == 0);
    CHECK(folder.inode() == dead);
    write_file(lock, "");
    CHECK(folder.serve());
    CHECK(::access(lock.c_str(), F_OK) != 0);
}

TEST_CASE("http_client: a full listen queue of a unix socket is awaited until the deadline") {
    const temporary_folder here;
    const std::string path = here.file("full");
    const int listener = bound_socket(path);
    REQUIRE(::listen(listener, 0) == 0);
    sockaddr_un address{};
    socklen_t size = sizeof address;
    ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
    std::vector<int> fillers;
    for (bool room = true; room && fillers.size() < 16;) {
        fillers.push_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        room = ::connect(fillers.back(), reinterpret_cast<const sockaddr*>(&address), size) == 0;
    }
    http_client client = peer::make_client("unix:" + path);
    http_call call = peer::call();
    peer::expire_after_should_send(call, 1);
    const result<http_response> got = client.send(peer::get(), call);
    REQUIRE(code_of(got) == errc::unreachable);
    CHECK(got.error().sys_errno == ETIMEDOUT);
    for (const int filler : fillers) ::close(filler);
    ::close(listener);
}

TEST_CASE("http_server: after stop() the address is free, even if a forked child still has the socket") {
    const peer::reserved_port port;
    http_server first = start(&echo, {}, port.text());
    const pid_t child = forked([] { return ::pause(); });
    first.stop(steady_clock::now());
    CHECK(http_server::start(first.address(), &echo));
    ::kill(child, SIGKILL);
    CHECK(status_of(child) == -SIGKILL);
}

#ifdef __linux__
TEST_CASE("http_server: the server uses one thread plus one per connection, and no idle thread wakes") {
    await_threads(0);
    http_server server = start();
    await_threads(1);
    {
        sent first(server);
        sent second(server);
        for (sent* each : {&first, &second}) CHECK(each->status() == "200");
        await_threads(3);
        const server_threads before;
        std::this_thread::sleep_for(600ms);  // a wrong server wakes twice
        for (const auto& each : server_threads().sleeps)
            CHECK(each.second <= before.sleeps.at(each.first) + 1);  // it may have waited for a lock before
    }
    await_threads(1);
    CHECK(server.stop(peer::soon()) == 0);
    await_threads(0);
}

#endif

}  // namespace
