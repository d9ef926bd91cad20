// tls_openssl: https:// with OpenSSL 3. Link with -lssl -lcrypto.
//
// Always verifies the certificate chain and the host name. TLS 1.2 or later, no renegotiation. Resumes a session until
// a certificate of its chain expires, or a file of tls_options changes. Never blocks: handshake, reads and writes share
// the request's deadline. A connection that ends without close_notify has failed, so a truncated response is never
// accepted.
#pragma once

#include <string>

#include "../base/error.hpp"
#include "../net/byte_stream.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// The PEM files of a TLS client. tls_openssl() reads them; the first connection after one has changed reads it again,
/// certificate and key both: the previous pair is used until they match.
struct tls_options {
    std::string ca_file;           ///< trusted roots; empty: the system's, or SSL_CERT_FILE and SSL_CERT_DIR
    std::string crl_file;          ///< a revocation list for each authority of a chain; empty: no revocation check
    std::string certificate_file;  ///< the client's own chain; empty: none
    std::string key_file;          ///< its key, without a passphrase
    std::string server_name;       ///< the name that the certificate must contain; empty: the URL's host
};

/// Makes the option https_stream of worker_options and http_client_options. Error: invalid_argument, naming the file that
/// cannot be used. Thread-safe.
result<stream_factory> tls_openssl(tls_options options = {});
}  // namespace v0_1_0
}  // namespace ojs
