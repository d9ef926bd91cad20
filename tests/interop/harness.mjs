// What the tests share: programs of the build that are started and watched, and the clients that call them.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { inspect } from "node:util";

import { createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";

import { ProcessLifecycleInterface } from "./generated/lifecycle_pb.js";

export const GUARD = 20_000; // ms to wait for what must happen: it ends a test that would hang, and proves nothing else
export const us = { processId: "kv-1" };

export const program = (name) => join(process.env.OJS_TEST_BUILD, name);
export const hasProgram = (name) => existsSync(program(name));

// A folder for sockets and files; it goes away with the test.
export function scratchFolder(t) {
  const folder = mkdtempSync(join(tmpdir(), "ojs-interop-"));
  t.after(() => rmSync(folder, { recursive: true }));
  return folder;
}

// A program, and the lines it has printed.
export class Child {
  constructor(t, command, environment = {}) {
    this.command = command;
    this.lines = [];
    this.waiting = new Set();
    this.process = spawn(command[0], command.slice(1), {
      env: { PATH: process.env.PATH, ...environment },
      stdio: ["ignore", "pipe", "pipe"],
    });
    for (const stream of [this.process.stdout, this.process.stderr]) {
      createInterface({ input: stream }).on("line", (line) => {
        this.lines.push(line);
        for (const look of this.waiting) look();
      });
    }
    this.ended = once(this.process, "close").then(([status, signal]) => status ?? signal);
    t.after(async () => {
      this.process.kill("SIGCONT");
      this.process.kill("SIGKILL");
      await this.ended;
    });
  }

  signal(name) {
    this.process.kill(name);
  }

  // The first line that matches, printed already or yet to come: what the pattern found in it.
  prints(pattern) {
    return within(`${pattern} of ${this.command.join(" ")}`, () => this.lines.join("\n"), (done) => {
      const look = () => {
        const found = this.lines.map((line) => line.match(pattern)).find(Boolean);
        if (found) done(found);
        return Boolean(found);
      };
      this.waiting.add(look);
      look();
    });
  }

  // The exit status, or the name of the signal.
  end() {
    return within(`the end of ${this.command.join(" ")}`, () => this.lines.join("\n"), (done) => this.ended.then(done));
  }
}

function within(what, seen, start) {
  return new Promise((resolve, reject) => {
    const guard = setTimeout(() => reject(new Error(`not within ${GUARD} ms: ${what}\n${seen()}`)), GUARD);
    start((found) => {
      clearTimeout(guard);
      resolve(found);
    });
  });
}

// lifecycle_runner as the process "kv-1", and how it is reached, over TCP or its Unix socket.
export async function startRunner(t, over, ...flags) {
  const socket = join(scratchFolder(t), "kv-1.sock");
  const where = over === "unix" ? ["--socket", socket] : ["--port", "0"];
  const child = new Child(t, [program("lifecycle_runner"), "--process-id", "kv-1", ...where, ...flags]);
  const [, address] = await child.prints(/^listening on (.*)$/);
  const base = over === "unix" ? "http://localhost" : `http://${address}`;
  child.http = { baseUrl: base, nodeOptions: over === "unix" ? { socketPath: socket } : {} };
  child.address = address;
  return child;
}

export const client = (http, options = { useBinaryFormat: false }) =>
  createClient(ProcessLifecycleInterface, createConnectTransport({ httpVersion: "1.1", ...http, ...options }));

// The ConnectError a call must end with.
export async function refusal(call) {
  try {
    await call;
  } catch (error) {
    return error;
  }
  throw new Error("the call went well, which it must not");
}

// Asks until the answer is as wanted; that answer.
export async function poll(ask, wanted) {
  const end = Date.now() + GUARD;
  for (;;) {
    const answer = await ask();
    if (wanted(answer)) return answer;
    if (Date.now() > end) throw new Error(`not within ${GUARD} ms; last: ${inspect(answer)}`);
    await new Promise((later) => setTimeout(later, 5));
  }
}

export async function output(command, environment = {}) {
  const child = spawn(command[0], command.slice(1), { env: { ...process.env, ...environment }, timeout: GUARD });
  let text = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (piece) => (text += piece));
  const [status] = await once(child, "close");
  return { status, text };
}
