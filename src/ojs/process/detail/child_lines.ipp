// child_lines: a child's thread: passes on its output line by line, and outlives it for its death signal.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "../../base/detail/sync.hpp"
#include "../../core/detail/wake.hpp"
#include "child_launch.ipp"
#include "out_of_memory.hpp"

namespace ojs::detail {
inline constexpr std::size_t max_line_length = 8 * 1024;
// Read after the child's end: what a pipe can hold. A process that left the group may still write.
inline constexpr std::size_t max_remaining = 1024 * 1024;

class line_stream {
  public:
    explicit line_stream(const atomic<time_point>& output_deadline) : deadline_(output_deadline) {}

    // Allocates, before the fork.
    void prepare(const child_stream& stream) {
        if (stream.kind != child_stream_kind::lines) return;
        on_line_ = stream.on_line;
        line_.reserve(max_line_length);
    }
    void open(unique_fd& from) {
        if (!on_line_) return;
        from_ = std::move(from);
        ::fcntl(from_.get(), F_SETFL, ::fcntl(from_.get(), F_GETFL) | O_NONBLOCK);
    }
    int fd() const noexcept { return from_.get(); }

    // Reads available bytes, at most a buffer; 0 if there are none, or the stream has ended and is closed.
    std::size_t read_some() {
        if (!from_) return 0;
        char bytes[4096];
        const ssize_t got = retry_interrupted([&] { return ::read(from_.get(), bytes, sizeof bytes); });
        if (got == 0 || (got < 0 && errno != EAGAIN)) close();
        if (got <= 0) return 0;
        take({bytes, static_cast<std::size_t>(got)});
        return static_cast<std::size_t>(got);
    }

    void read_remaining() {
        std::size_t total = 0;
        std::size_t got = 1;
        for (; got != 0 && total < max_remaining && in_time(); total += got) got = read_some();
        close();
    }

  private:
    bool in_time() const noexcept { return steady_clock::now() < deadline_.load(); }

    void take(std::string_view bytes) {
        while (!bytes.empty()) {
            const std::size_t end = bytes.find('\n');
            const std::string_view piece = bytes.substr(0, end);
            const std::size_t room = max_line_length - line_.size();
            line_.append(piece.substr(0, room));
            if (piece.size() > room) {
                emit_line();
                bytes.remove_prefix(room);
            } else if (end != std::string_view::npos) {
                emit_line();
                bytes.remove_prefix(piece.size() + 1);
            } else {
                return;
            }
        }
    }

    void emit_line() {
        try {
            if (in_time()) on_line_(line_);
        } catch (...) {  // documented
        }
        line_.clear();
    }

    void close() {
        from_.reset();
        if (!line_.empty()) emit_line();
    }

    const atomic<time_point>& deadline_;
    unique_fd from_;
    function<void(std::string_view)> on_line_;
    std::string line_;
};

class child_thread : public ref_counted {
  public:
    // Launches the child from its own thread, which runs until finish().
    static result<pid_t> launch(child_launch& launch, const child_options& options, ref<child_thread>& out) {
        ref<child_thread> self = make_ref<child_thread>();
        result<wake> waker = wake::create();
        if (!waker) return waker.error();
        self->waker_ = std::move(*waker);
        const auto work = [self, &launch, &options] { self->run(launch, options); };
        result<thread> started = thread::start(work, {256 * 1024, false, "ojs-child"});
        if (!started) return started.error();
        self->thread_ = std::move(*started);
        unique_lock held(self->mutex_);
        while (self->child_ && *self->child_ == 0) self->changed_.wait(held);
        result<pid_t> child = self->child_;
        held.unlock();
        if (child) out = self;
        if (!child) self->finish();
        return child;
    }

    // Returns when the child's output has been passed on or dropped. Call it once the child has ended.
    void finish() {
        waker_.notify();
        const unique_lock held(mutex_);
        thread_.join();
    }

    atomic<time_point> output_deadline{time_point::max()};  // later output is dropped

  private:
    // The thread's function: launches the child and passes its output on until finish().
    void run(child_launch& launch, const child_options& options) {
        const bool runs = begin(launch, options);
        while (runs && wait_for_more()) {
            for (line_stream& each : streams_) each.read_some();
        }
        for (line_stream& each : streams_) each.read_remaining();
    }

    bool begin(child_launch& launch, const child_options& options) {
        result<pid_t> child = unless_out_of_memory([&] {
            streams_[0].prepare(options.output);
            streams_[1].prepare(options.errors);
            return launch.run();
        });
        for (int i = 0; child && i < 2; ++i) streams_[i].open(launch.our_ends[i + 1]);
        const bool runs = child.has_value();
        const unique_lock held(mutex_);
        child_ = std::move(child);
        changed_.notify_all();
        return runs;
    }

    // False once finish() was called.
    bool wait_for_more() const noexcept {
        pollfd watched[] = {{waker_.fd(), POLLIN, 0}, {streams_[0].fd(), POLLIN, 0}, {streams_[1].fd(), POLLIN, 0}};
        return ::poll(watched, 3, -1) < 0 || watched[0].revents == 0;
    }

    wake waker_;
    thread thread_;
    mutex mutex_;  // guards what follows, and the end of the thread
    condition changed_;
    result<pid_t> child_ = pid_t{0};  // 0: not launched yet
    line_stream streams_[2] = {line_stream(output_deadline), line_stream(output_deadline)};
};
}  // namespace ojs::detail
