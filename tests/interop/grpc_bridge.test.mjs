// examples/grpc_bridge, called by connect-node's gRPC client.
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { test } from "node:test";

import { Code, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";

import {
  ProcessLifecycleInterface,
  ReadinessResponse_ReadinessState as Readiness,
  ShutdownStatus_State as State,
} from "./generated/lifecycle_pb.js";
import { Child, hasProgram, poll, program, refusal, startRunner, us } from "./harness.mjs";

const skip = hasProgram("grpc_bridge") ? false : "grpc_bridge is not built: libgrpc++ is missing";

async function startBridge(t, to, ...flags) {
  const bridge = new Child(t, [program("grpc_bridge"), "--to", to, ...flags]);
  const [, port] = await bridge.prints(/^listening on port (.*)$/);
  bridge.baseUrl = `http://127.0.0.1:${port}`;
  bridge.call = createClient(ProcessLifecycleInterface, createGrpcTransport({ baseUrl: bridge.baseUrl }));
  return bridge;
}

test("grpc_bridge: Shutdown by gRPC -> DRAINING is reported, and the runner ends", { skip }, async (t) => {
  const runner = await startRunner(t, "unix", "--initial-work", "40");
  const bridge = await startBridge(t, runner.address);
  await poll(() => bridge.call.getReadinessStatus(us), (answer) => answer.state === Readiness.READY);
  const running = await bridge.call.getShutdownStatus(us);
  assert.equal(running.state, State.RUNNING);
  assert.equal(running.metrics.inFlightRequests, 40);
  const ack = await bridge.call.shutdown({ ...us, reason: "é", gracePeriodSeconds: 10, maxShutdownSeconds: 20 });
  assert.equal(ack.acknowledged, true);
  assert.equal((await bridge.call.getReadinessStatus(us)).state, Readiness.DRAINING);
  await poll(() => bridge.call.getShutdownStatus(us), (answer) => answer.state === State.SHUTDOWN_DRAINING);
  assert.equal(await runner.end(), 0);
  assert.equal((await refusal(bridge.call.getShutdownStatus(us))).code, Code.Unavailable);
  bridge.signal("SIGTERM");
  assert.equal(await bridge.end(), 0);
});

test("grpc_bridge: responses of other peers, each code of Connect -> the gRPC status", { skip }, async (t) => {
  let answer;
  const peer = createServer((_, response) => response.writeHead(answer[0]).end(answer[1]));
  t.after(() => peer.close());
  await once(peer.listen(0, "127.0.0.1"), "listening");
  const { call } = await startBridge(t, `127.0.0.1:${peer.address().port}`);
  for (let code = Code.Canceled; code <= Code.Unauthenticated; ++code) {
    const name = Code[code].replace(/\B[A-Z]/g, (letter) => `_${letter}`).toLowerCase();
    answer = [400, JSON.stringify({ code: name, message: "as said" })];
    const refused = await refusal(call.getShutdownStatus(us));
    assert.equal(refused.code, code, name);
    assert.equal(refused.rawMessage, "as said");
  }
  for (const [status, body, code] of [
    [502, "<html>", Code.Unavailable],
    [200, "<html>", Code.Internal],
  ]) {
    answer = [status, body];
    assert.equal((await refusal(call.getShutdownStatus(us))).code, code, `${status} ${body}`);
  }
});

test("grpc_bridge: SIGTERM -> the call in progress is finished, and no other is taken", { skip }, async (t) => {
  const peer = createServer();
  t.after(() => peer.close());
  await once(peer.listen(0, "127.0.0.1"), "listening");
  const bridge = await startBridge(t, `127.0.0.1:${peer.address().port}`, "--limit", "20s");
  const arrival = once(peer, "request");
  const underWay = bridge.call.getShutdownStatus(us);
  const [, response] = await arrival;
  bridge.signal("SIGTERM");
  await bridge.prints(/^draining$/);
  const refused = await refusal(bridge.call.getReadinessStatus(us));
  assert.equal(refused.code, Code.Unavailable);
  assert.equal(refused.rawMessage, "the bridge shuts down");
  response.end('{"state":"SHUTDOWN_DRAINING"}');
  assert.equal((await underWay).state, State.SHUTDOWN_DRAINING);
  assert.equal(await bridge.end(), 0);
  await bridge.prints(/^drained$/);
});
