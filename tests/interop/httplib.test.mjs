// examples/httplib_drain: a server of cpp-httplib that ends in order.
import assert from "node:assert/strict";
import { Agent, get } from "node:http";
import { test } from "node:test";

import { Child, hasProgram, poll, program } from "./harness.mjs";

const skip = hasProgram("httplib_drain") ? false : "httplib_drain is not built: cpp-httplib is missing";

async function start(t, environment = {}) {
  const server = new Child(t, [program("httplib_drain")], environment);
  server.port = Number((await server.prints(/^listening on 127\.0\.0\.1:(\d+)$/))[1]);
  return server;
}

function ask(server, path, agent = undefined) {
  return new Promise((done, failed) => {
    get({ host: "127.0.0.1", port: server.port, path, agent }, (answer) => {
      let body = "";
      answer.on("data", (text) => (body += text)).on("end", () => done({ status: answer.statusCode, body }));
    }).on("error", failed);
  });
}

// Signals closer together than 250 ms are one.
async function abort(server) {
  await poll(
    () => server.signal("SIGTERM") ?? server.lines.join("\n"),
    (lines) => /step="lame duck" +status=done/.test(lines),
  );
}

test("cpp-httplib: a request in flight gets its response, an idle connection does not delay the end", { skip }, async (t) => {
  const server = await start(t, { LAME_DUCK_MS: "600000" });
  const agent = new Agent({ keepAlive: true });
  t.after(() => agent.destroy());
  assert.equal((await ask(server, "/readyz", agent)).status, 200);
  server.signal("SIGTERM");
  await poll(() => ask(server, "/readyz"), ({ status }) => status === 503);
  // During the lame duck, which is longer than a machine may stand still: the second signal ends it.
  const inHand = ask(server, "/hello", agent);
  assert.deepEqual(await inHand, { status: 200, body: "hello\n" });
  await abort(server);
  await server.end(); // 1 where the abort left the idle connection behind
  await assert.rejects(ask(server, "/hello"), { code: "ECONNREFUSED" });
});

test("cpp-httplib: a request in flight at SIGTERM gets its response", { skip }, async (t) => {
  const server = await start(t);
  const inHand = ask(server, "/hello");
  await server.prints(/^GET \/hello$/);
  server.signal("SIGTERM");
  assert.deepEqual(await inHand, { status: 200, body: "hello\n" });
  assert.equal(await server.end(), 0);
});
