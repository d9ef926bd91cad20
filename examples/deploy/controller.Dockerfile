# The controller, alone in an empty image of about 2.8 MB. From the top of the repository:
#
#     docker build -f examples/deploy/controller.Dockerfile -t ojs-controller .
#
# It runs a program for each job, which has to be in the image as well: replace FROM scratch by an image that has yours, or
# copy one here that needs no shared libraries. The traps are those of Dockerfile, which says more about each.

FROM debian:bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ picojson-dev
WORKDIR /src
COPY ojs_shutdown.hpp extensions/ojs_operating.hpp extensions/ojs_process.hpp extensions/ojs_server.hpp \
    extensions/ojs_spool.hpp ./
COPY tools/controller.cpp tools/config_file.hpp examples/deploy/hold_signals.S ./
# As for the worker: nothing else has to be in the image, and no early SIGTERM is lost.
RUN g++ -std=c++17 -O2 -pthread -static -s -I. controller.cpp hold_signals.S -Wl,-e,hold_signals -o controller

FROM scratch
COPY --from=build /src/controller /controller
# Has to own the queue's folders as well, and nobody else may write to them.
USER 65532:65532
STOPSIGNAL SIGTERM
# Over HTTP instead: metrics_address, and there GET /livez and GET /readyz.
HEALTHCHECK NONE
# In brackets, so that it is PID 1 and gets the signals. Without arguments it reads /etc/controller/controller.json.
ENTRYPOINT ["/controller"]
