# The example worker in an otherwise empty image of 2.7 MB, by g++. From the top of the repository:
#
#     docker build -f examples/deploy/plain.Dockerfile -t ojs-worker .
#
# Replace tools/worker.cpp with your program. Dockerfile makes an image of a quarter of this size, also for another
# processor, and explains the lines that both have.

FROM debian:bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ picojson-dev
WORKDIR /src
COPY ojs_shutdown.hpp extensions/ojs_memory.hpp extensions/ojs_ops.hpp extensions/ojs_server.hpp \
    extensions/ojs_spool.hpp ./
COPY tools/worker.cpp examples/deploy/hold_signals.S ./
RUN g++ -std=c++17 -O2 -pthread -static -s -I. worker.cpp hold_signals.S -Wl,-e,hold_signals -o worker

FROM scratch
COPY --from=build /src/worker /worker
USER 65532:65532
STOPSIGNAL SIGTERM
HEALTHCHECK NONE
# The exec form (brackets), so that it is PID 1 and receives signals.
ENTRYPOINT ["/worker"]
