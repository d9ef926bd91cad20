// A child of a launcher, written on connect-node's server: it says that it is ready, drains on request, and says that it
// has ended. Each call and each answer is a line on its output.
import { createServer } from "node:http";

import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { connectNodeAdapter, createConnectTransport } from "@connectrpc/connect-node";

import {
  ProcessLifecycleInterface,
  ReadinessResponse_ReadinessState as Readiness,
  ShutdownStatus_State as State,
} from "./generated/lifecycle_pb.js";

const processId = process.env.OJS_PROCESS_ID;
const socketPath = (address) => address.replace(/^unix:/, "");
const say = (...words) => console.log(processId, ...words);

const launcher = createClient(
  ProcessLifecycleInterface,
  createConnectTransport({
    baseUrl: "http://localhost",
    httpVersion: "1.1",
    useBinaryFormat: false,
    nodeOptions: { socketPath: socketPath(process.env.OJS_LAUNCHER_ADDR) },
  }),
);

let state = State.RUNNING;
let work = 4;
let asked = 0;
let reason = "";

async function end() {
  state = State.SHUTDOWN_COMPLETE;
  const ack = await launcher.notifyShutdownComplete({
    processId,
    message: "drained",
    shutdownDurationMs: BigInt(Date.now() - asked),
  });
  say("notified complete", ack.acknowledged);
  process.exit(0);
}

function isForUs(request) {
  if (request.processId !== processId) throw new ConnectError(`not ${request.processId}`, Code.NotFound);
}

const routes = (router) =>
  router.service(ProcessLifecycleInterface, {
    shutdown(request, context) {
      isForUs(request);
      say("shutdown", request.gracePeriodSeconds, request.maxShutdownSeconds, context.timeoutMs() > 0, request.reason);
      reason = request.reason;
      asked ||= Date.now();
      state = State.SHUTDOWN_REQUESTED;
      return { acknowledged: true, estimatedSeconds: 1 };
    },
    getShutdownStatus(request) {
      isForUs(request);
      if (asked) state = State.SHUTDOWN_DRAINING;
      // The launcher must have seen each step before the next one.
      if (asked && --work === 0) void end();
      return {
        state,
        message: reason,
        metrics: { inFlightRequests: work, bufferedBytes: 9_007_199_254_740_993n, blockingOperations: ["flush é"] },
      };
    },
    getReadinessStatus(request) {
      isForUs(request);
      return {
        state: Readiness.READY,
        checks: { grpcServerReady: true, backendConnected: true, backendWarmed: true, customChecks: { cache: true } },
      };
    },
  });

const server = createServer(connectNodeAdapter({ routes }));
process.umask(0o077);
server.listen(socketPath(process.env.OJS_LIFECYCLE_ADDR), async () => {
  say("listening");
  const ack = await launcher.notifyReady({ processId, message: "from node" });
  say("notified ready", ack.acknowledged);
  await launcher.notifyReady({ processId: "nobody-1" }).catch((error) => say("refused", Code[error.code]));
});
