// curl and `buf curl`, as people type them.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { test } from "node:test";

import { SERVICE, output, startRunner } from "./harness.mjs";

const noCurl = spawnSync("curl", ["--version"]).error ? "curl is missing" : false;
const us = { processId: "kv-1" };

test("curl: ask, shut down, and its end", { skip: noCurl }, async (t) => {
  const runner = await startRunner(t, "tcp", "--initial-work", "3");
  await runner.prints(/^ready$/);
  for (const [method, body, status, wanted, type = "application/json"] of [
    ["GetReadinessStatus", us, 200, /"state":"READY"/],
    ["GetShutdownStatus", { process_id: "kv-1" }, 200, /^\{"metrics":\{"inFlightRequests":3\}\}$/],
    ["Shutdown", { processId: "kv-9" }, 404, /"code":"not_found"/],
    ["Sleep", us, 404, /"code":"unimplemented"/],
    ["NotifyReady", us, 404, /"code":"unimplemented"/],
    ["NotifyShutdownComplete", us, 404, /"code":"unimplemented"/],
    ["Shutdown", us, 415, /"code":"unimplemented"/, "application/proto"],
    ["Shutdown", { ...us, gracePeriodSeconds: 4 }, 200, /"acknowledged":true/],
  ]) {
    const what = ["-H", `Content-Type: ${type}`, "-d", JSON.stringify(body), `${runner.http.baseUrl}${SERVICE}${method}`];
    const { text } = await output(["curl", "-sS", "-w", "\n%{http_code}", ...what]);
    const [answer, code] = text.trim().split(/\n+/);
    assert.equal(Number(code), status, `${method}: ${text}`);
    assert.match(answer, wanted, method);
  }
  assert.equal(await runner.end(), 0);
});

test("buf curl has the binary codec alone, and is told that it is not served", async (t) => {
  const runner = await startRunner(t, "tcp");
  const { OJS_TEST_BUF: buf, OJS_TEST_PROTO: proto } = process.env;
  const url = `${runner.http.baseUrl}${SERVICE}GetShutdownStatus`;
  const { status, text } = await output([buf, "curl", "--schema", proto, "-d", '{"processId":"kv-1"}', url]);
  assert.notEqual(status, 0);
  assert.match(text, /"code": "unimplemented"/);
  assert.match(text, /the Content-Type must be application\/json/);
});
