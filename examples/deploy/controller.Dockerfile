# The controller in an otherwise empty image of about 2.8 MB. From the top of the repository:
#
#     docker build -f examples/deploy/controller.Dockerfile -t ojs-controller .
#
# It runs a program for each job, which the image must contain too: replace FROM scratch with an image that has yours, or
# copy a static one here. Dockerfile explains the lines that both have.

FROM debian:bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ picojson-dev
WORKDIR /src
COPY ojs_shutdown.hpp extensions/ojs_ops.hpp extensions/ojs_process.hpp extensions/ojs_server.hpp \
    extensions/ojs_spool.hpp ./
COPY tools/controller.cpp tools/config_file.hpp examples/deploy/hold_signals.S ./
# As for the worker: the image needs no other files, and no early SIGTERM is lost.
RUN g++ -std=c++17 -O2 -pthread -static -s -I. controller.cpp hold_signals.S -Wl,-e,hold_signals -o controller

FROM scratch
COPY --from=build /src/controller /controller
# This user must own the queue's folders and be the only one with write access; with OJS_SPOOL_GROUP_WRITE=on, this group too.
USER 65532:65532
STOPSIGNAL SIGTERM
# Use HTTP instead: GET /livez and GET /readyz at metrics_address.
HEALTHCHECK NONE
# The exec form (brackets), so that it is PID 1 and receives signals. The default configuration is
# /etc/controller/controller.json.
ENTRYPOINT ["/controller"]
