#!/bin/sh
# Installs what is missing to build and test (with "check": also what `make check` needs; with "api",
# "format", "container", "coverage", "debian", "adapters", "queues", "kafka", "mutants", "observability", "portability" and
# "subprojects" what those targets need), and only that.
# Says nothing and touches no network when everything is there.
set -eu
CXX=${CXX:-c++}
LOCAL=third_party/include  # headers copied by hand are found here; git ignores the folder

has_program() { command -v "$1" >/dev/null 2>&1; }
has_header() { echo "#include <$1>" | "$CXX" -std=c++17 -isystem "$LOCAL" -x c++ -E -o /dev/null - 2>/dev/null; }

# What `clang++ -fsanitize=fuzzer` links is a package of its own, for each version of clang; asked for once that is there.
has_fuzzer() {
    has_program clang++ || return 0
    echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
        clang++ -fsanitize=fuzzer -x c++ -o /dev/null - 2>/dev/null
}
fuzzer_package() { echo "libclang-rt-$(clang++ -dumpversion | cut -d. -f1)-dev"; }

# Two columns: package, what it is for.
missing() {
    # ${CXX} may hold a launcher and its compiler ("ccache g++"): the first word decides.
    if has_program "${CXX%% *}"; then
        has_header picojson.h || echo "picojson-dev <picojson.h>"
        has_header doctest/doctest.h || echo "doctest-dev <doctest/doctest.h>"
    else
        # Without a compiler there is no asking it for headers; apt-get skips what is installed.
        echo "g++ the compiler $CXX"
        echo "picojson-dev <picojson.h>"
        echo "doctest-dev <doctest/doctest.h>"
    fi
    has_program python3 || echo "python3 python3"
    if [ "${1:-}" = check ]; then
        has_program g++ || echo "g++ g++"
        has_program clang++ || echo "clang clang++"
        has_fuzzer || echo "$(fuzzer_package) clang++ -fsanitize=fuzzer"
        has_program clang-tidy || echo "clang-tidy clang-tidy"
        has_program cppcheck || echo "cppcheck cppcheck"
        python3 -c "import yaml" 2>/dev/null || echo "python3-yaml python3's yaml"
        has_program promtool || echo "prometheus promtool"
        has_program minisign || echo "minisign minisign"
        has_program cmake || echo "cmake cmake"
        has_program qemu-s390x-static || echo "qemu-user-static qemu-s390x-static"
        has_program s390x-linux-gnu-g++ || echo "g++-s390x-linux-gnu s390x-linux-gnu-g++"
        has_program pkg-config || echo "pkg-config pkg-config"
        python3 -c "import ensurepip" 2>/dev/null || echo "python3-venv python3 -m venv"
    fi
    case "${1:-}" in
        check | format) has_program clang-format || echo "clang-format clang-format" ;;
    esac
    case "${1:-}" in
        check | api) has_program doxygen || echo "doxygen doxygen" ;;
        coverage) has_program gcovr || echo "gcovr gcovr" ;;
        debian) has_program mmdebstrap || echo "mmdebstrap mmdebstrap" ;;
        subprojects)
            has_program meson || echo "meson meson"
            has_program bazel || echo "bazel-bootstrap bazel"
            [ -e /usr/share/bazel/rules/java ] || echo "bazel-rules-java /usr/share/bazel/rules/java"
            ;;
    esac
    if [ "${1:-}" = adapters ]; then
        has_header openssl/ssl.h || echo "libssl-dev <openssl/ssl.h>"
        has_program openssl || echo "openssl openssl"
        has_header libpq-fe.h || has_header postgresql/libpq-fe.h || echo "libpq-dev <libpq-fe.h>"
        has_program psql || echo "postgresql-client psql"
        has_program initdb || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || echo "postgresql initdb"
        has_program pgbouncer || [ -x /usr/sbin/pgbouncer ] || echo "pgbouncer pgbouncer"
        has_program faketime || echo "faketime faketime"
    fi
    if [ "${1:-}" = queues ]; then
        has_header amqp.h || echo "librabbitmq-dev <amqp.h>"
        has_header hiredis/hiredis.h || echo "libhiredis-dev <hiredis/hiredis.h>"
        has_header nats/nats.h || echo "libnats-dev <nats/nats.h>"
        has_header librdkafka/rdkafka.h || echo "librdkafka-dev <librdkafka/rdkafka.h>"
        has_header grpcpp/grpcpp.h || echo "libgrpc++-dev <grpcpp/grpcpp.h>"
        has_header boost/beast.hpp || echo "libboost-dev <boost/beast.hpp>"
        has_program rabbitmq-server || [ -x /usr/sbin/rabbitmq-server ] || echo "rabbitmq-server rabbitmq-server"
        has_program redis-server || echo "redis-server redis-server"
        has_program redis-cli || echo "redis-tools redis-cli"
        has_program nats-server || [ -x /usr/sbin/nats-server ] || echo "nats-server nats-server"
    fi
    if [ "${1:-}" = kafka ]; then
        has_program java || echo "default-jre-headless java"
        has_program mvn || echo "maven mvn"
    fi
    if [ "${1:-}" = mutants ]; then
        has_program clang++ || echo "clang clang++"
        has_program unshare || echo "util-linux unshare"
        python3 -c "import ensurepip" 2>/dev/null || echo "python3-venv python3 -m venv"
    fi
    if [ "${1:-}" = portability ]; then
        python3 -c "import ensurepip" 2>/dev/null || echo "python3-venv python3 -m venv"
        has_program qemu-arm-static || echo "qemu-user-static qemu-arm-static"
        has_program s390x-linux-gnu-g++ || echo "g++-s390x-linux-gnu s390x-linux-gnu-g++"
    fi
    if [ "${1:-}" = observability ]; then
        has_program prometheus || echo "prometheus prometheus"
        has_program promtool || echo "prometheus promtool"
    fi
    if [ "${1:-}" = container ]; then
        for program in podman buildah runc tini dumb-init; do
            has_program "$program" || echo "$program $program"
        done
        python3 -c "import ensurepip" 2>/dev/null || echo "python3-venv python3 -m venv"
        has_program busybox || echo "busybox-static busybox"
    fi
}

explain() {
    echo "Missing:"
    missing "$@" | sed 's/\([^ ]*\) \(.*\)/  \2  (Debian package \1)/'
    echo "Headers may also be copied by hand: $LOCAL/picojson.h, $LOCAL/doctest/doctest.h"
}

packages_missing() { missing "$@" | cut -d' ' -f1 | sort -u; }
packages=$(packages_missing "$@")
[ -n "$packages" ] || exit 0

as_root=
[ "$(id -u)" -eq 0 ] || as_root=sudo
if ! has_program apt-get || { [ -n "$as_root" ] && ! has_program sudo; }; then
    explain "$@" >&2
    exit 1
fi
# $packages is a list of words.
install() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $packages; }
for round in first second; do  # what the first one installed may say what else is needed
    echo "installing:" $packages
    # The lists of a fresh machine are empty or old; they are fetched once, where the first try fails.
    install >/dev/null 2>&1 || { $as_root apt-get update -q && install -q; } >&2 || break
    packages=$(packages_missing "$@")
    [ -n "$packages" ] || exit 0
done
explain "$@" >&2
exit 1
