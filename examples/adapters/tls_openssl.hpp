// https:// for ojs_shutdown.hpp, by OpenSSL 3: copy this file, give worker_options::https_stream what tls_openssl()
// returns, link with -lssl -lcrypto. examples/tls_worker.cpp is a whole worker.
//
// The certificate's chain and the host's name are always verified; there is no switch for it. TLS 1.2 at least, no
// renegotiation, sessions resumed. Nothing waits in here: handshake, reads and writes have the request's one deadline.
// A connection that ends without close_notify has failed, so that nobody can cut an answer short unnoticed.
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "ojs_shutdown.hpp"

namespace ojs_adapters {

// Files are PEM; all are read once, by tls_openssl().
struct tls_options {
    std::string
        ca_file;  // whom to trust instead of the system's roots (SSL_CERT_FILE and SSL_CERT_DIR move those)
    std::string crl_file;  // revocation lists, one for each authority of a chain; empty: nothing is looked up
    std::string certificate_file;  // the client's own chain; empty: none
    std::string key_file;          // and its key, without a passphrase
    std::string server_name;       // what the certificate must name; empty: the URL's host
};

namespace tls_detail {

template <auto Free>
struct free_with {
    template <class T>
    void operator()(T* target) const noexcept {
        Free(target);
    }
};
using context_ptr = std::unique_ptr<SSL_CTX, free_with<SSL_CTX_free>>;
using ssl_ptr = std::unique_ptr<SSL, free_with<SSL_free>>;
using session_ptr = std::unique_ptr<SSL_SESSION, free_with<SSL_SESSION_free>>;

// The first error OpenSSL has queued, without its codes; empty: none.
inline std::string queued_error() {
    const unsigned long code = ERR_get_error();
    ERR_clear_error();
    if (code == 0) return {};
    if (ERR_SYSTEM_ERROR(code)) return std::strerror(ERR_GET_REASON(code));
    const char* const reason = ERR_reason_error_string(code);
    return reason != nullptr ? reason : "error " + std::to_string(code);
}

// ---- the socket, without SIGPIPE ----

inline int socket_of(BIO* bio) {
    return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio)));
}

inline int moved(BIO* bio, ssize_t bytes, int retry) {
    BIO_clear_retry_flags(bio);
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        BIO_set_flags(bio, retry | BIO_FLAGS_SHOULD_RETRY);
    return static_cast<int>(bytes);
}
inline int bio_write(BIO* bio, const char* bytes, int size) {
    return moved(bio, ::send(socket_of(bio), bytes, static_cast<std::size_t>(size), MSG_NOSIGNAL),
                 BIO_FLAGS_WRITE);
}
inline int bio_read(BIO* bio, char* buffer, int size) {
    const ssize_t got = ::recv(socket_of(bio), buffer, static_cast<std::size_t>(size), 0);
    if (got == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
    return moved(bio, got, BIO_FLAGS_READ);
}
inline long bio_control(BIO* bio, int command, long, void*) {
    if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0;
    return command == BIO_CTRL_FLUSH;
}

inline BIO_METHOD* socket_method() {
    static BIO_METHOD* const made = [] {
        BIO_METHOD* const out = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "ojs socket");
        BIO_meth_set_write(out, bio_write);
        BIO_meth_set_read(out, bio_read);
        BIO_meth_set_ctrl(out, bio_control);
        return out;
    }();
    return made;
}

// ---- what all connections share ----

// The context, and the last session of each server.
class shared_context {
  public:
    explicit shared_context(tls_options options)
        : options_(std::move(options)), context_(SSL_CTX_new(TLS_client_method())) {}

    // Null, or what cannot be used.
    const char* prepare() {
        SSL_CTX* const to = context_.get();
        if (to == nullptr) return "OpenSSL";
        SSL_CTX_set_verify(to, SSL_VERIFY_PEER, nullptr);
        SSL_CTX_set_options(to, SSL_OP_NO_RENEGOTIATION);
        SSL_CTX_set_mode(to, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                 SSL_MODE_RELEASE_BUFFERS);
        if (SSL_CTX_set_min_proto_version(to, TLS1_2_VERSION) != 1) return "OpenSSL";
        SSL_CTX_set_session_cache_mode(to, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
        SSL_CTX_sess_set_new_cb(to, keep_session);
        SSL_CTX_set_app_data(to, this);
        return load_trust() ? load_own() : wrong_;
    }

    SSL_CTX* get() const { return context_.get(); }
    const tls_options& options() const { return options_; }

    // The session to resume: one of TLS 1.3 is used once [RFC 8446 C.4], an older one as long as the server takes it.
    session_ptr take_session(const std::string& server) {
        const std::lock_guard<std::mutex> held(mutex_);
        const auto found = sessions_.find(server);
        if (found == sessions_.end()) return nullptr;
        if (SSL_SESSION_get_protocol_version(found->second.get()) >= TLS1_3_VERSION) {
            session_ptr out = std::move(found->second);
            sessions_.erase(found);
            return out;
        }
        SSL_SESSION_up_ref(found->second.get());
        return session_ptr(found->second.get());
    }

  private:
    bool load_trust() {
        SSL_CTX* const to = context_.get();
        wrong_ = options_.ca_file.empty() ? "the system's roots" : options_.ca_file.c_str();
        const int loaded = options_.ca_file.empty() ? SSL_CTX_set_default_verify_paths(to)
                                                    : SSL_CTX_load_verify_file(to, options_.ca_file.c_str());
        if (loaded != 1) return false;
        if (options_.crl_file.empty()) return true;
        wrong_ = options_.crl_file.c_str();
        X509_STORE* const store = SSL_CTX_get_cert_store(to);
        X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL);
        X509_LOOKUP* const lists = X509_STORE_add_lookup(store, X509_LOOKUP_file());
        return lists != nullptr &&
               X509_load_crl_file(lists, options_.crl_file.c_str(), X509_FILETYPE_PEM) > 0;
    }
    const char* load_own() {
        SSL_CTX* const to = context_.get();
        if (options_.certificate_file.empty() && options_.key_file.empty()) return nullptr;
        SSL_CTX_set_default_passwd_cb(
            to, [](char*, int, int, void*) { return 0; });  // nobody is there to be asked
        if (SSL_CTX_use_certificate_chain_file(to, options_.certificate_file.c_str()) != 1)
            return options_.certificate_file.c_str();
        if (SSL_CTX_use_PrivateKey_file(to, options_.key_file.c_str(), SSL_FILETYPE_PEM) != 1)
            return options_.key_file.c_str();
        return nullptr;
    }

    static int keep_session(SSL* of, SSL_SESSION* session) {
        auto* const self = static_cast<shared_context*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(of)));
        const auto* const server = static_cast<const std::string*>(SSL_get_ex_data(of, 0));
        const std::lock_guard<std::mutex> held(self->mutex_);
        self->sessions_[*server].reset(session);
        return 1;  // it is ours now
    }

    const tls_options options_;
    const char* wrong_ = nullptr;
    const context_ptr context_;
    std::mutex mutex_;
    std::map<std::string, session_ptr> sessions_;  // by host and port
};

// ---- one connection ----

class stream : public ojs::byte_stream {
  public:
    stream(std::shared_ptr<shared_context> context, std::string server)
        : context_(std::move(context)), server_(std::move(server)), ssl_(SSL_new(context_->get())) {}

    // Whether the connection will be verified to be with `host`, and with nobody else.
    bool prepare(int socket, std::string host) {
        if (!ssl_) return false;
        BIO* const bio = BIO_new(socket_method());
        if (bio == nullptr) return false;
        BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(socket)));
        BIO_set_init(bio, 1);
        SSL_set_bio(ssl_.get(), bio, bio);
        SSL_set_ex_data(ssl_.get(), 0, &server_);  // for keep_session()
        if (const session_ptr session = context_->take_session(server_))
            SSL_set_session(ssl_.get(), session.get());
        if (!host.empty() && host.back() == '.') host.pop_back();
        unsigned char address[16];
        const bool is_address = ::inet_pton(AF_INET, host.c_str(), address) == 1 ||
                                ::inet_pton(AF_INET6, host.c_str(), address) == 1;
        X509_VERIFY_PARAM* const verify = SSL_get0_param(ssl_.get());
        X509_VERIFY_PARAM_set_hostflags(
            verify, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
        if (is_address) return X509_VERIFY_PARAM_set1_ip_asc(verify, host.c_str()) == 1;
        return !host.empty() && SSL_set1_host(ssl_.get(), host.c_str()) == 1 &&
               SSL_ctrl(ssl_.get(), SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name, host.data()) ==
                   1;
    }

    ojs::stream_result handshake() override {
        ERR_clear_error();
        const ojs::stream_result out = outcome(SSL_connect(ssl_.get()), 0);
        if (out.status != ojs::stream_status::ok || SSL_get0_peer_certificate(ssl_.get()) != nullptr)
            return out;
        return failed(
            "the server shows no certificate");  // an anonymous cipher, where the system's settings allow one
    }
    ojs::stream_result read_some(char* buffer, std::size_t size) override {
        ERR_clear_error();
        std::size_t bytes = 0;
        const int done = SSL_read_ex(ssl_.get(), buffer, size, &bytes);
        return outcome(done, bytes);
    }
    ojs::stream_result write_some(std::string_view bytes) override {
        ERR_clear_error();
        std::size_t written = 0;
        const int done = SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &written);
        return outcome(done, written);
    }
    void end() noexcept override {
        if (broken_ || SSL_is_init_finished(ssl_.get()) == 0) return;
        ERR_clear_error();
        SSL_shutdown(ssl_.get());
        ERR_clear_error();
    }
    std::string failure() const override { return failure_; }

  private:
    ojs::stream_result outcome(int returned, std::size_t bytes) {
        const int system = errno;
        switch (SSL_get_error(ssl_.get(), returned)) {
            case SSL_ERROR_NONE: return {ojs::stream_status::ok, bytes};
            case SSL_ERROR_WANT_READ: return {ojs::stream_status::wants_read, 0};
            case SSL_ERROR_WANT_WRITE: return {ojs::stream_status::wants_write, 0};
            case SSL_ERROR_ZERO_RETURN: return {ojs::stream_status::closed, 0};
            default: break;
        }
        const long verdict = SSL_get_verify_result(ssl_.get());
        const std::string queued = queued_error();
        if (verdict != X509_V_OK) return failed(X509_verify_cert_error_string(verdict));
        return failed(queued.empty() ? std::strerror(system) : queued);
    }
    ojs::stream_result failed(const std::string& why) {
        broken_ = true;
        failure_ = "TLS: " + why;
        return {ojs::stream_status::failed, 0};
    }

    const std::shared_ptr<shared_context> context_;
    std::string server_;
    const ssl_ptr ssl_;
    bool broken_ = false;
    std::string failure_;
};

}  // namespace tls_detail

// What https:// is spoken over. Errors: invalid_argument, with the file that cannot be used. Thread-safe.
inline ojs::result<ojs::stream_factory> tls_openssl(tls_options options = {}) {
    ERR_clear_error();
    const auto context = std::make_shared<tls_detail::shared_context>(std::move(options));
    if (const char* const wrong = context->prepare()) {
        return ojs::error{ojs::errc::invalid_argument, 0,
                          "TLS cannot use " + std::string(*wrong == '\0' ? "an empty file name" : wrong) +
                              ": " + tls_detail::queued_error()};
    }
    return ojs::stream_factory([context](const ojs::stream_request& on) -> ojs::result<ojs::byte_stream_ref> {
        const std::string& host =
            context->options().server_name.empty() ? on.host : context->options().server_name;
        auto* const made = new tls_detail::stream(context, on.name);
        ojs::byte_stream_ref out(made);
        if (made->prepare(on.socket, host)) return out;
        return ojs::error{ojs::errc::system, 0, "TLS cannot be set up: " + tls_detail::queued_error()};
    });
}

}  // namespace ojs_adapters
