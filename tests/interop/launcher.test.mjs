// The launcher, and a child that is a connect-node server.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { Child, output, program, scratchFolder } from "./harness.mjs";

const server = new URL("lifecycle_server.mjs", import.meta.url).pathname;

async function startLauncher(t) {
  const folder = scratchFolder(t);
  const config = join(folder, "fleet.json");
  const admin = `unix:${join(folder, "admin.sock")}`;
  const node = {
    name: "node",
    command: [process.execPath, server],
    desired_instances: 1,
    health_check_timeout: "20s",
    shutdown: { grace_period: "5s", max_duration: "15s", poll_interval: "20ms" },
  };
  writeFileSync(config, JSON.stringify({ socket_folder: folder, process_groups: [node] }));
  const launcher = new Child(t, [program("launcher"), "run", "--config", config, "--admin", admin]);
  launcher.ask = (...words) => output([program("launcher"), ...words], { LAUNCHER_ADMIN: admin });
  return launcher;
}

const log = (launcher) => launcher.lines.join("\n");

test("launcher: a child on connect-node -> it reports ready, and is shut down", async (t) => {
  const launcher = await startLauncher(t);
  await launcher.prints(/node-1 listening/);
  await launcher.prints(/node-1 notified ready true/);
  await launcher.prints(/node-1 refused NotFound/);
  await launcher.prints(/process ready/);
  const status = await launcher.ask("status", "node-1");
  assert.equal(status.status, 0);
  assert.match(status.text, /READY/);

  const stopped = await launcher.ask("stop", "node-1", "--reason", "bad disk é");
  assert.equal(stopped.status, 0, stopped.text + log(launcher));
  assert.match(log(launcher), /node-1 shutdown 5 15 true bad disk é/);
  assert.match(log(launcher), /node-1 notified complete true/);
  const over = await launcher.ask("status", "node-1");
  assert.match(over.text, /COMPLETE/);
  launcher.signal("SIGTERM");
  assert.equal(await launcher.end(), 0);
  assert.doesNotMatch(log(launcher), /forcing shutdown/);
});
