// What the coordinator does not speak, asked for by connect-node: each must come out as an error that says so.
import assert from "node:assert/strict";
import { test } from "node:test";

import { MethodOptions_IdempotencyLevel as Idempotency } from "@bufbuild/protobuf/wkt";
import { Code, createClient } from "@connectrpc/connect";
import { compressionGzip, createGrpcTransport, createGrpcWebTransport } from "@connectrpc/connect-node";

import { ProcessLifecycleInterface } from "./generated/lifecycle_pb.js";
import { client, connectTo, json, refusal, startRunner } from "./harness.mjs";

const us = { processId: "kv-1" };
const method = ProcessLifecycleInterface.method;
const unary = (transport, asked) => transport.unary(asked, undefined, undefined, undefined, us);

test("the binary codec, which is connect-node's default", async (t) => {
  const runner = await startRunner(t, "tcp");
  const refused = await refusal(client(runner.http, {}).getShutdownStatus(us));
  assert.equal(refused.code, Code.Unimplemented);
  assert.match(refused.rawMessage, /application\/json: the binary codec/);
});

test("a compressed body", async (t) => {
  const runner = await startRunner(t, "tcp");
  const zipped = { ...json, sendCompression: compressionGzip, compressMinBytes: 0 };
  const refused = await refusal(client(runner.http, zipped).shutdown({ ...us, reason: "x".repeat(2000) }));
  assert.equal(refused.code, Code.Unimplemented);
  assert.match(refused.rawMessage, /compressed/);
});

test("Connect GET", async (t) => {
  const runner = await startRunner(t, "tcp");
  const gettable = { ...method.getShutdownStatus, idempotency: Idempotency.NO_SIDE_EFFECTS };
  const refused = await refusal(unary(connectTo(runner.http, { ...json, useHttpGet: true }), gettable));
  assert.equal(refused.code, Code.Unimplemented);
  assert.match(refused.rawMessage, /POST/);
});

test("a stream", async (t) => {
  const runner = await startRunner(t, "tcp");
  const streamed = { ...method.getShutdownStatus, methodKind: "server_streaming" };
  const one = async function* () {
    yield us;
  };
  const refused = await refusal(connectTo(runner.http).stream(streamed, undefined, undefined, undefined, one()));
  assert.ok([Code.Unimplemented, Code.Unknown].includes(refused.code), `${refused}`);
  assert.match(refused.message, /415|streams are not served/);
});

test("gRPC-Web and gRPC end with an error, and the service goes on", async (t) => {
  const runner = await startRunner(t, "tcp");
  const web = createClient(ProcessLifecycleInterface, createGrpcWebTransport({ ...runner.http, httpVersion: "1.1" }));
  assert.match((await refusal(web.getShutdownStatus(us, { timeoutMs: 5000 }))).message, /415/);
  const grpc = createClient(ProcessLifecycleInterface, createGrpcTransport({ baseUrl: runner.http.baseUrl }));
  const refused = await refusal(grpc.getShutdownStatus(us, { timeoutMs: 10_000 }));
  assert.notEqual(refused.code, Code.DeadlineExceeded, "the client was left waiting");
  await client(runner.http).getShutdownStatus(us);
});
