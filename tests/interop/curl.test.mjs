// curl and `buf curl`, as people type them.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { test } from "node:test";

import { SERVICE, output, startRunner } from "./harness.mjs";

const noCurl = spawnSync("curl", ["--version"]).error ? "curl is missing" : false;
const buf = process.env.OJS_TEST_BUF;
const proto = process.env.OJS_TEST_PROTO;

async function curl(runner, method, body, type = "application/json") {
  const { baseUrl, nodeOptions } = runner.http;
  const where = nodeOptions.socketPath ? ["--unix-socket", nodeOptions.socketPath] : [];
  const what = ["-H", `Content-Type: ${type}`, "-d", JSON.stringify(body), `${baseUrl}${SERVICE}${method}`];
  const { status, text } = await output(["curl", "-sS", "-w", "\n%{http_code}", ...where, ...what]);
  assert.equal(status, 0, text);
  const lines = text.trim().split("\n");
  return { status: Number(lines.pop()), body: JSON.parse(lines.join("\n")) };
}

for (const over of ["tcp", "unix"]) {
  test(`curl over ${over}: ask, shut down, and its end`, { skip: noCurl }, async (t) => {
    const runner = await startRunner(t, over, "--initial-work", "3");
    const us = { processId: "kv-1" };
    await runner.prints(/^ready$/);
    const ready = await curl(runner, "GetReadinessStatus", us);
    assert.equal(ready.status, 200);
    assert.equal(ready.body.state, "READY");
    const running = await curl(runner, "GetShutdownStatus", { process_id: "kv-1" });
    assert.deepEqual(running.body, { metrics: { inFlightRequests: 3 } });
    assert.deepEqual((await curl(runner, "Shutdown", { processId: "kv-9" })).body.code, "not_found");
    assert.equal((await curl(runner, "Sleep", us)).status, 404);
    assert.equal((await curl(runner, "NotifyReady", us)).body.code, "unimplemented");
    assert.equal((await curl(runner, "NotifyShutdownComplete", us)).body.code, "unimplemented");
    const binary = await curl(runner, "Shutdown", us, "application/proto");
    assert.equal(binary.status, 415);
    assert.equal(binary.body.code, "unimplemented");
    const ack = await curl(runner, "Shutdown", { ...us, gracePeriodSeconds: 4 });
    assert.equal(ack.body.acknowledged, true);
    assert.equal(await runner.end(), 0);
  });
}

test("buf curl has the binary codec alone, and is told that it is not served", async (t) => {
  const runner = await startRunner(t, "tcp");
  const url = `${runner.http.baseUrl}${SERVICE}GetShutdownStatus`;
  const { status, text } = await output([buf, "curl", "--schema", proto, "-d", '{"processId":"kv-1"}', url]);
  assert.notEqual(status, 0);
  assert.match(text, /"code": "unimplemented"/);
  assert.match(text, /the Content-Type must be application\/json/);
});
