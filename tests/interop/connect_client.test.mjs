// connect-node's client, on code generated from lifecycle.proto, against the coordinator of lifecycle_runner.
import assert from "node:assert/strict";
import { test } from "node:test";

import { Code, createClient } from "@connectrpc/connect";
import { createGrpcTransport, createGrpcWebTransport } from "@connectrpc/connect-node";

import {
  ProcessLifecycleInterface,
  ReadinessResponse_ReadinessState as Readiness,
  ShutdownStatus_State as State,
} from "./generated/lifecycle_pb.js";
import { client, poll, refusal, startRunner, us } from "./harness.mjs";

for (const over of ["tcp", "unix"]) {
  test(`coordinator over ${over}: Shutdown -> DRAINING is reported, the work ends, exit 0`, async (t) => {
    const runner = await startRunner(t, over, "--initial-work", "60", "--work-duration", "50ms");
    const call = client(runner.http);

    const readiness = await poll(() => call.getReadinessStatus(us), (answer) => answer.state === Readiness.READY);
    assert.deepEqual(
      { ...readiness.checks, $typeName: undefined },
      { $typeName: undefined, grpcServerReady: true, backendConnected: true, backendWarmed: true, customChecks: {} },
    );
    const running = await call.getShutdownStatus(us);
    assert.equal(running.state, State.RUNNING);
    assert.equal(running.metrics.inFlightRequests, 60);
    assert.equal(running.metrics.bufferedBytes, 0n);

    const ack = await call.shutdown({ ...us, reason: "deploy", gracePeriodSeconds: 10, maxShutdownSeconds: 20 });
    assert.equal(ack.acknowledged, true);
    assert.ok(ack.estimatedSeconds > 0, `${ack.estimatedSeconds}`);
    assert.equal((await call.getReadinessStatus(us)).state, Readiness.DRAINING);
    await runner.prints(/^draining$/);
    const again = await call.shutdown({ ...us, reason: "deploy", gracePeriodSeconds: 10 });
    assert.equal(again.acknowledged, true);

    await poll(() => call.getShutdownStatus(us), (answer) => answer.state === State.SHUTDOWN_DRAINING);
    assert.equal(await runner.end(), 0);
    await runner.prints(/^drained$/);
  });
}

test("coordinator: the binary codec, gRPC-Web, gRPC -> an error, and the service continues", async (t) => {
  const runner = await startRunner(t, "tcp");
  const binary = await refusal(client(runner.http, {}).getShutdownStatus(us));
  assert.equal(binary.code, Code.Unimplemented);
  assert.match(binary.rawMessage, /application\/json: the binary codec/);
  const web = createClient(ProcessLifecycleInterface, createGrpcWebTransport({ ...runner.http, httpVersion: "1.1" }));
  assert.match((await refusal(web.getShutdownStatus(us, { timeoutMs: 5000 }))).message, /415/);
  const grpc = createClient(ProcessLifecycleInterface, createGrpcTransport({ baseUrl: runner.http.baseUrl }));
  const refused = await refusal(grpc.getShutdownStatus(us, { timeoutMs: 10_000 }));
  assert.notEqual(refused.code, Code.DeadlineExceeded, "the client was left waiting");
  await client(runner.http).getShutdownStatus(us);
});
