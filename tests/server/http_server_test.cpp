// http_server, a draining_server with a thread per connection: its limits and threads, unix sockets, and stop().
#include <sys/file.h>
#include <sys/un.h>

#include <ctime>
#include <future>

#include "processes.hpp"
#include "server_clients.hpp"

using namespace test;

namespace {
http_server start(http_handler handler = &echo, http_server_options options = {}, const std::string& address = "0") {
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

TEST_CASE("http_server: an IPv6 address is served to clients of the address and of localhost") {
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

TEST_CASE("http_server: a unix socket has mode 0600, a second server fails with busy, and the destructor removes it") {
    const temporary_folder here;
    const std::string path = here.file("sock");
    {
        const http_server server = start(&echo, {}, "unix:" + path);
        CHECK(server.address() == "unix:" + path);
        CHECK(server.port() == 0);
        CHECK(std::filesystem::status(path).permissions() == std::filesystem::perms(0600));
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

TEST_CASE("http_server: a unix path with a live socket or another file is refused with busy and not changed") {
    const own_folder folder;
    int fd = -1;
    const std::function<void()> all[] = {[&] { write_file(folder.path, ""); },
                                         [&] { REQUIRE(::symlink("other", folder.path.c_str()) == 0); },  // to nothing
                                         [&] { REQUIRE(::mkfifo(folder.path.c_str(), 0600) == 0); },
                                         [&] { fd = bound_socket(folder.path); },  // it has yet to listen
                                         [&] {
                                             fd = bound_socket(folder.path);
                                             REQUIRE(::listen(fd, 1) == 0);
                                         },
                                         [&] { fd = bound_socket(folder.path, SOCK_DGRAM); }};
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
    if (::getuid() != 0) return;
    CHECK(serve_at(01777, 65534) == errc::invalid_argument);
    CHECK(serve_at(0700, 0) == std::nullopt);
    const std::string link = folder.own.path().string() + ".link";  // another user's, who may point it elsewhere
    REQUIRE(::symlink(folder.own.path().c_str(), link.c_str()) == 0);
    CHECK(code_of(http_server::start("unix:" + link + "/s", &echo)) == std::nullopt);
    REQUIRE(::lchown(link.c_str(), 65534, 65534) == 0);
    CHECK(code_of(http_server::start("unix:" + link + "/s", &echo)) == errc::invalid_argument);
    ::unlink(link.c_str());
}

TEST_CASE("http_server: a unix path is bound or taken over only if its lock file is free and empty") {
    const own_folder folder;
    const std::string lock = folder.path + ".ojs-lock";
    write_file(lock, "");
    const int holder = ::open(lock.c_str(), O_RDONLY | O_CLOEXEC);
    REQUIRE(::flock(holder, LOCK_EX) == 0);
    for (const bool has_dead_socket : {false, true}) {
        if (has_dead_socket) folder.leave_dead_socket();
        const ino_t before = folder.inode();
        CHECK(code_of(folder.serve()) == errc::busy);
        CHECK(folder.inode() == before);
    }
    ::close(holder);
    write_file(lock, "somebody's");
    CHECK_FALSE(folder.serve());
    CHECK(std::filesystem::exists(lock));
    write_file(lock, "");
    CHECK(folder.serve());
    CHECK_FALSE(std::filesystem::exists(lock));
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
        const std::size_t before = await_threads(3);
        std::this_thread::sleep_for(600ms);     // a wrong server wakes twice
        CHECK(await_threads(3) - before <= 3);  // each may have waited for a lock before
    }
    await_threads(1);
    CHECK(server.stop(peer::soon()) == 0);
    await_threads(0);
}

#endif
}  // namespace
