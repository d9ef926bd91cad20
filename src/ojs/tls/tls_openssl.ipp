#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "../base/detail/files.ipp"
#include "tls_openssl.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
namespace tls {
template <auto Free>
struct free_with {
    template <class T>
    void operator()(T* target) const noexcept {
        Free(target);
    }
};
using context_ptr = std::unique_ptr<SSL_CTX, free_with<SSL_CTX_free>>;
using store_ptr = std::unique_ptr<X509_STORE, free_with<X509_STORE_free>>;
using ssl_ptr = std::unique_ptr<SSL, free_with<SSL_free>>;
using session_ptr = std::unique_ptr<SSL_SESSION, free_with<SSL_SESSION_free>>;

// The first error in OpenSSL's queue, without its codes; empty: none.
OJS_SHUTDOWN_INLINE std::string queued_error() {
    const unsigned long code = ERR_get_error();
    ERR_clear_error();
    if (code == 0) return {};
    if (ERR_SYSTEM_ERROR(code)) return std::strerror(ERR_GET_REASON(code));
    const char* const reason = ERR_reason_error_string(code);
    return reason != nullptr ? reason : "error " + std::to_string(code);
}

// ---- the socket, without SIGPIPE ----

OJS_SHUTDOWN_INLINE int socket_of(BIO* bio) { return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }

OJS_SHUTDOWN_INLINE int finish_transfer(BIO* bio, ssize_t bytes, int retry) {
    BIO_clear_retry_flags(bio);
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        BIO_set_flags(bio, retry | BIO_FLAGS_SHOULD_RETRY);
    return static_cast<int>(bytes);
}
OJS_SHUTDOWN_INLINE int bio_write(BIO* bio, const char* bytes, int size) {
    return finish_transfer(bio, ::send(socket_of(bio), bytes, static_cast<std::size_t>(size), send_flags),
                           BIO_FLAGS_WRITE);
}
OJS_SHUTDOWN_INLINE int bio_read(BIO* bio, char* buffer, int size) {
    const ssize_t got = ::recv(socket_of(bio), buffer, static_cast<std::size_t>(size), 0);
    if (got == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
    return finish_transfer(bio, got, BIO_FLAGS_READ);
}
OJS_SHUTDOWN_INLINE long bio_control(BIO* bio, int command, long, void*) {
    if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0;
    return command == BIO_CTRL_FLUSH;
}

OJS_SHUTDOWN_INLINE BIO_METHOD* socket_method() {
    static atomic<BIO_METHOD*> shared{nullptr};
    BIO_METHOD* found = shared.load();
    if (found != nullptr) return found;
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "ojs socket");
    BIO_meth_set_write(made, bio_write);
    BIO_meth_set_read(made, bio_read);
    BIO_meth_set_ctrl(made, bio_control);
    if (shared.compare_exchange_strong(found, made)) return made;
    BIO_meth_free(made);  // another thread's was first
    return found;
}

// ---- what all connections share ----

// Identifies a version of a file: differs after a write or replacement. Zeros if there is no file.
OJS_SHUTDOWN_INLINE std::array<long long, 5> identity_of(const std::string& path) {
    struct stat found {};
    if (path.empty() || ::stat(path.c_str(), &found) != 0) return {};
#ifdef __APPLE__
    const timespec changed = found.st_ctimespec;
#else
    const timespec changed = found.st_ctim;
#endif
    return {static_cast<long long>(found.st_dev), static_cast<long long>(found.st_ino),
            static_cast<long long>(found.st_size), changed.tv_sec, changed.tv_nsec};
}

// Whether a file has changed since the last check. A missing file has not: it may be under replacement.
class watched_file {
  public:
    bool has_changed(const std::string& path) {
        const auto found = identity_of(path);
        if (found == decltype(found){} || found == last_) return false;
        last_ = found;
        return true;
    }
    void forget() { last_ = {}; }  // it could not be used: the next check reads it again

  private:
    std::array<long long, 5> last_{};
};

// The earliest expiry of a chain's certificates; 0 if there are none.
OJS_SHUTDOWN_INLINE std::int64_t expiry_of(const STACK_OF(X509) * chain) {
    const std::time_t now = std::time(nullptr);
    std::int64_t out = 0;
    for (int i = 0; i < sk_X509_num(chain); ++i) {
        int days = 0;
        int seconds = 0;
        ASN1_TIME_diff(&days, &seconds, nullptr, X509_get0_notAfter(sk_X509_value(chain, i)));
        const std::int64_t expires_at = now + static_cast<std::int64_t>(days) * 86400 + seconds;
        out = i == 0 ? expires_at : std::min(out, expires_at);
    }
    return out;
}

// A session and the expiry of the chain that was verified when it began.
struct cached_session {
    session_ptr session;
    std::int64_t expires_at = 0;
};

struct peer {
    std::string server;           // host and port
    std::int64_t expires_at = 0;  // of the session that it resumes; 0: none
};

// The context, the trusted certificates, the client's own, and the latest session of each server.
class shared_context {
  public:
    explicit shared_context(tls_options options)
        : options_(std::move(options)), context_(SSL_CTX_new(TLS_client_method())) {
        for (std::string* const file :
             {&options_.ca_file, &options_.crl_file, &options_.certificate_file, &options_.key_file})
            *file = absolute_path(*file);  // read again when it has changed
    }

    // Null, or what is unusable.
    const char* prepare() {
        SSL_CTX* const context = context_.get();
        if (context == nullptr) return "OpenSSL";
        SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
        SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION);
        SSL_CTX_set_mode(
            context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
        if (SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1) return "OpenSSL";
        SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
        SSL_CTX_sess_set_new_cb(context, cache_session);
        SSL_CTX_set_app_data(context, this);
        const std::lock_guard<std::mutex> held(mutex_);
        if (const char* const problem = reload_changed_files()) return problem;
        SSL_CTX_set1_cert_store(context, store_.get());
        return reload_changed_client();
    }
    // Sets what `ssl` trusts and shows, and the latest session with that server if all are still valid. Null, or what
    // is unusable.
    const char* prepare(SSL* ssl, peer& server) {
        const std::lock_guard<std::mutex> held(mutex_);
        if (const char* const problem = reload_changed_files()) return problem;
        SSL_set1_verify_cert_store(ssl, store_.get());
        // An unusable pair, such as one of which a file is still old, replaces none.
        if (const char* const problem = reload_changed_client())
            unusable_ = std::string(" (an earlier version; the one on disk cannot be used: ") + problem + ": " +
                        queued_error() + ")";
        STACK_OF(X509)* chain = nullptr;
        if (client_) SSL_CTX_get0_chain_certs(client_.get(), &chain);
        if (client_ && SSL_use_cert_and_key(ssl, certificate(), SSL_CTX_get0_privatekey(client_.get()), chain, 1) != 1)
            return options_.certificate_file.c_str();
        const cached_session last = take_session(server.server);
        server.expires_at = last.expires_at;
        if (last.session) SSL_set_session(ssl, last.session.get());
        return nullptr;
    }

    SSL_CTX* get() const { return context_.get(); }
    std::string refusal() {
        const std::lock_guard<std::mutex> held(mutex_);
        const std::string& own = options_.certificate_file;
        return own.empty() ? "the server requires a client certificate (certificate_file, key_file): "
                           : "the server refused the client certificate " + own + unusable_ + ": ";
    }
    const tls_options& options() const { return options_; }

  private:
    // A session of TLS 1.3 is used once [RFC 8446 C.4], an older one while the server accepts it.
    cached_session take_session(const std::string& server) {
        const auto found = sessions_.find(server);
        if (found == sessions_.end()) return {};
        cached_session out = std::move(found->second);
        if (out.expires_at > std::time(nullptr) &&
            SSL_SESSION_get_protocol_version(out.session.get()) < TLS1_3_VERSION) {
            SSL_SESSION_up_ref(out.session.get());
            found->second = {session_ptr(out.session.get()), out.expires_at};
            return out;
        }
        sessions_.erase(found);
        return out.expires_at > std::time(nullptr) ? std::move(out) : cached_session();
    }
    // Loads ca_file and crl_file again if one has changed, and drops the sessions verified by the previous content.
    // Null, or what is unusable.
    const char* reload_changed_files() {
        const bool ca_changed = ca_.has_changed(options_.ca_file);
        const bool crl_changed = crl_.has_changed(options_.crl_file);
        if (store_ && !ca_changed && !crl_changed) return nullptr;
        sessions_.clear();
        store_.reset(X509_STORE_new());
        const char* const problem = store_ ? load_trusted(store_.get()) : "OpenSSL";
        if (problem != nullptr) store_.reset();
        return problem;
    }
    const char* load_trusted(X509_STORE* store) {
        const char* const ca = options_.ca_file.empty() ? nullptr : options_.ca_file.c_str();
        const int loaded = ca == nullptr ? X509_STORE_set_default_paths(store) : X509_STORE_load_file(store, ca);
        if (loaded != 1) return ca == nullptr ? "the system's roots" : ca;
        if (options_.crl_file.empty()) return nullptr;
        const char* const crl = options_.crl_file.c_str();
        X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL);
        X509_LOOKUP* const lists = X509_STORE_add_lookup(store, X509_LOOKUP_file());
        return lists != nullptr && X509_load_crl_file(lists, crl, X509_FILETYPE_PEM) > 0 ? nullptr : crl;
    }
    // Reads both files if one has changed. An unusable pair is read again by the next connection.
    const char* reload_changed_client() {
        const bool certificate_changed = certificate_.has_changed(options_.certificate_file);
        const bool key_changed = key_.has_changed(options_.key_file);
        if (options_.certificate_file.empty() && options_.key_file.empty()) return nullptr;
        if (client_ && !certificate_changed && !key_changed) return nullptr;
        context_ptr made(SSL_CTX_new(TLS_client_method()));
        const char* const problem = made ? load_client(made.get()) : "OpenSSL";
        if (problem != nullptr) return certificate_.forget(), problem;
        client_ = std::move(made);
        unusable_.clear();
        sessions_.clear();  // a server may know them by the previous certificate
        return nullptr;
    }
    const char* load_client(SSL_CTX* made) {
        const char* const certificate = options_.certificate_file.c_str();
        const char* const key = options_.key_file.c_str();
        SSL_CTX_set_default_passwd_cb(made,
                                      [](char*, int, int, void*) { return 0; });  // never prompts for a passphrase
        if (SSL_CTX_use_certificate_chain_file(made, certificate) != 1) return certificate;
        return SSL_CTX_use_PrivateKey_file(made, key, SSL_FILETYPE_PEM) == 1 ? nullptr : key;
    }
    X509* certificate() const { return client_ ? SSL_CTX_get0_certificate(client_.get()) : nullptr; }

    static int cache_session(SSL* ssl, SSL_SESSION* session) {
        auto* const self = static_cast<shared_context*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
        const auto* const connected = static_cast<const peer*>(SSL_get_ex_data(ssl, 0));
        // A resumed session was not verified again.
        const std::int64_t expires_at =
            SSL_session_reused(ssl) != 0 ? connected->expires_at : expiry_of(SSL_get0_verified_chain(ssl));
        X509_STORE* trusted = nullptr;
        SSL_get0_verify_cert_store(ssl, &trusted);
        const std::lock_guard<std::mutex> held(self->mutex_);
        if (trusted != self->store_.get() || SSL_get_certificate(ssl) != self->certificate())
            return 0;  // a file has changed meanwhile
        self->sessions_[connected->server] = {session_ptr(session), expires_at};
        return 1;  // we own it
    }

    tls_options options_;
    const context_ptr context_;
    std::mutex mutex_;  // guards what follows
    watched_file ca_;
    watched_file crl_;
    watched_file certificate_;
    watched_file key_;
    store_ptr store_;                                 // null: a file could not be read
    context_ptr client_;                              // holds the client's chain and key; null: none
    std::string unusable_;                            // why the files on disk do not replace it; empty: they do
    std::map<std::string, cached_session> sessions_;  // by peer::server
};

class stream : public byte_stream {
  public:
    stream(std::shared_ptr<shared_context> context, std::string server)
        : context_(std::move(context)), peer_{std::move(server)}, ssl_(SSL_new(context_->get())) {}

    // Null, or what is unusable. The handshake will verify that the peer is `host`.
    const char* prepare(int socket, const std::string& host) {
        if (!ssl_ || !set_socket(socket) || !set_host(host)) return "OpenSSL";
        SSL_set_ex_data(ssl_.get(), 0, &peer_);  // for cache_session()
        return context_->prepare(ssl_.get(), peer_);
    }

    stream_status handshake() override {
        ERR_clear_error();
        const stream_status out = outcome(SSL_connect(ssl_.get()));
        if (out != stream_status::ok || SSL_get0_peer_certificate(ssl_.get()) != nullptr) return out;
        return failed("the server sent no certificate");  // an anonymous cipher, if the system's settings allow one
    }
    stream_status read_some(char* buffer, std::size_t& size) override {
        ERR_clear_error();
        return outcome(SSL_read_ex(ssl_.get(), buffer, size, &size));
    }
    stream_status write_some(std::string_view& bytes) override {
        ERR_clear_error();
        std::size_t written = 0;
        const int done = SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &written);
        if (done == 1) bytes.remove_prefix(written);
        if (done == 1 || SSL_get_error(ssl_.get(), done) != SSL_ERROR_SYSCALL) return outcome(done);
        const int system = errno;
        char byte = 0;  // an alert that says why the server has closed may have arrived before
        SSL_read_ex(ssl_.get(), &byte, 1, &written);
        return failed(reason_of(system));
    }
    void end() noexcept override {
        if (::getpid() != owner_) return;  // a child made by fork(): the parent owns the connection
        if (broken_ || SSL_is_init_finished(ssl_.get()) == 0) return;
        ERR_clear_error();
        SSL_shutdown(ssl_.get());
        ERR_clear_error();
    }
    std::string failure() const override { return failure_; }

  private:
    bool set_socket(int socket) {
        BIO* const bio = BIO_new(socket_method());
        if (bio == nullptr) return false;
        BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(socket)));
        BIO_set_init(bio, 1);
        SSL_set_bio(ssl_.get(), bio, bio);
        return true;
    }
    bool set_host(std::string host) {
        if (!host.empty() && host.back() == '.') host.pop_back();
        unsigned char address[16];
        const bool is_address =
            ::inet_pton(AF_INET, host.c_str(), address) == 1 || ::inet_pton(AF_INET6, host.c_str(), address) == 1;
        X509_VERIFY_PARAM* const verify = SSL_get0_param(ssl_.get());
        X509_VERIFY_PARAM_set_hostflags(verify,
                                        X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
        if (is_address) return X509_VERIFY_PARAM_set1_ip_asc(verify, host.c_str()) == 1;
        return !host.empty() && SSL_set1_host(ssl_.get(), host.c_str()) == 1 &&
               SSL_ctrl(ssl_.get(), SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name, host.data()) == 1;
    }
    stream_status outcome(int returned) {
        const int system = errno;
        switch (SSL_get_error(ssl_.get(), returned)) {
            case SSL_ERROR_NONE: return stream_status::ok;
            case SSL_ERROR_WANT_READ: return stream_status::wants_read;
            case SSL_ERROR_WANT_WRITE: return stream_status::wants_write;
            case SSL_ERROR_ZERO_RETURN: return stream_status::closed;
            default: break;
        }
        return failed(reason_of(system));
    }
    std::string reason_of(int system) const {
        const long verdict = SSL_get_verify_result(ssl_.get());
        const bool refused = is_refusal(ERR_peek_error());
        const std::string queued = queued_error();
        if (refused) return context_->refusal() + queued;
        if (verdict != X509_V_OK) return X509_verify_cert_error_string(verdict);
        return queued.empty() ? std::strerror(system) : queued;
    }
    // Whether the server's alert is about the client's certificate: it has nothing else of ours to verify.
    bool is_refusal(unsigned long code) const {
        if (ERR_GET_LIB(code) != ERR_LIB_SSL) return false;
        switch (ERR_GET_REASON(code) - SSL_AD_REASON_OFFSET) {
            case SSL_AD_HANDSHAKE_FAILURE: return SSL_get0_peer_CA_list(ssl_.get()) != nullptr;  // it asked for one
            case SSL_AD_BAD_CERTIFICATE:
            case SSL_AD_UNSUPPORTED_CERTIFICATE:
            case SSL_AD_CERTIFICATE_REVOKED:
            case SSL_AD_CERTIFICATE_EXPIRED:
            case SSL_AD_CERTIFICATE_UNKNOWN:
            case SSL_AD_UNKNOWN_CA:
            case SSL_AD_ACCESS_DENIED:
            case TLS13_AD_CERTIFICATE_REQUIRED: return true;
            default: return false;
        }
    }
    stream_status failed(const std::string& reason) {
        broken_ = true;
        failure_ = "TLS: " + reason;
        return stream_status::failed;
    }

    const std::shared_ptr<shared_context> context_;
    peer peer_;
    const ssl_ptr ssl_;
    const pid_t owner_ = ::getpid();
    bool broken_ = false;
    std::string failure_;
};
}  // namespace tls
}  // namespace detail

OJS_SHUTDOWN_INLINE result<stream_factory> tls_openssl(tls_options options) {
    const auto failure = [](errc code, const char* problem) {
        return error{code, 0,
                     "TLS cannot use " + std::string(*problem == '\0' ? "an empty file name" : problem) + ": " +
                         detail::tls::queued_error()};
    };
    ERR_clear_error();
    const auto context = std::make_shared<detail::tls::shared_context>(std::move(options));
    if (const char* const problem = context->prepare()) return failure(errc::invalid_argument, problem);
    const auto in_child = std::make_shared<std::atomic<stream_factory*>>();
    return stream_factory(
        [context, failure, in_child, owner = ::getpid()](int socket, const std::string& host,
                                                         const std::string& peer_name) -> result<byte_stream_ref> {
            if (owner != ::getpid()) {  // a lock of the parent's context may stay locked here
                if (in_child->load() == nullptr) {
                    result<stream_factory> made = tls_openssl(context->options());
                    if (!made) return made.error();
                    in_child->store(new stream_factory(std::move(*made)));
                }
                return (*in_child->load())(socket, host, peer_name);
            }
            const std::string& name = context->options().server_name;
            auto* const stream = new detail::tls::stream(context, peer_name);
            byte_stream_ref out(stream);
            ERR_clear_error();
            if (const char* const problem = stream->prepare(socket, name.empty() ? host : name))
                return failure(errc::unreachable, problem);
            return out;
        });
}
}  // namespace v0_1_0
}  // namespace ojs
