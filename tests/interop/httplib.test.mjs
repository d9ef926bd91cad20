// examples/httplib_drain: a server of cpp-httplib that ends in order.
import assert from "node:assert/strict";
import { get } from "node:http";
import { test } from "node:test";

import { Child, hasProgram, program } from "./harness.mjs";

const skip = hasProgram("httplib_drain") ? false : "httplib_drain is not built: cpp-httplib is missing";

async function start(t) {
  const server = new Child(t, [program("httplib_drain")]);
  server.port = Number((await server.prints(/^listening on 127\.0\.0\.1:(\d+)$/))[1]);
  return server;
}

function ask(server, path) {
  return new Promise((done, failed) => {
    get({ host: "127.0.0.1", port: server.port, path }, (answer) => {
      let body = "";
      answer.on("data", (text) => (body += text)).on("end", () => done({ status: answer.statusCode, body }));
    }).on("error", failed);
  });
}

test("cpp-httplib: SIGTERM during a request -> the request gets its response", { skip }, async (t) => {
  const server = await start(t);
  assert.equal((await ask(server, "/readyz")).status, 200);
  const inHand = ask(server, "/hello");
  await server.prints(/^GET \/hello$/);
  server.signal("SIGTERM");
  assert.deepEqual(await inHand, { status: 200, body: "hello\n" });
  assert.equal(await server.end(), 0);
  await assert.rejects(ask(server, "/hello"), { code: "ECONNREFUSED" });
});
