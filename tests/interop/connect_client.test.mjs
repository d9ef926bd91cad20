// connect-node's client, on code generated from lifecycle.proto, against the coordinator of lifecycle_runner.
import assert from "node:assert/strict";
import { test } from "node:test";

import { Code } from "@connectrpc/connect";

import {
  ReadinessResponse_ReadinessState as Readiness,
  ShutdownStatus_State as State,
} from "./generated/lifecycle_pb.js";
import { client, poll, refusal, startRunner } from "./harness.mjs";

const us = { processId: "kv-1" };
// What node calls a listener that has gone, before or within a call.
const ENDED = /ECONNREFUSED|ENOENT|ECONNRESET|EPIPE|socket hang up/;

for (const over of ["tcp", "unix"]) {
  test(`${over}: a whole shutdown, from READY to its end`, async (t) => {
    const runner = await startRunner(t, over, "--initial-work", "60", "--work-duration", "50ms");
    const call = client(runner.http);

    const readiness = await poll(() => call.getReadinessStatus(us), (answer) => answer.state === Readiness.READY);
    assert.deepEqual(
      { ...readiness.at(-1).checks, $typeName: undefined },
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

    // The process ends as soon as it has drained, so that COMPLETE is what is asked for last, or its clean end.
    const states = new Set();
    let least = 60;
    const final = await poll(
      () => call.getShutdownStatus(us).catch((error) => error),
      (answer) => {
        if (answer instanceof Error || answer.state === State.SHUTDOWN_COMPLETE) return true;
        states.add(State[answer.state]);
        assert.ok(answer.metrics.inFlightRequests <= least, "work in hand grows in a drain");
        least = answer.metrics.inFlightRequests;
        return false;
      },
    );
    if (final.at(-1) instanceof Error) assert.match(final.at(-1).message, ENDED);
    assert.deepEqual([...states].filter((each) => !/SHUTDOWN_(REQUESTED|DRAINING)/.test(each)), []);
    assert.ok(states.has("SHUTDOWN_DRAINING"));
    assert.ok(least < 60, "no progress was seen");
    assert.equal(await runner.end(), 0);
    await runner.prints(/^drained$/);
  });

  test(`${over}: what a child does not take is refused with a code`, async (t) => {
    const runner = await startRunner(t, over);
    const call = client(runner.http);
    for (const method of ["notifyReady", "notifyShutdownComplete"]) {
      const refused = await refusal(call[method](us));
      assert.equal(refused.code, Code.Unimplemented);
      assert.equal(refused.rawMessage, "a launcher serves this method, not its child");
    }
    for (const method of ["shutdown", "getShutdownStatus", "getReadinessStatus"]) {
      const refused = await refusal(call[method]({ processId: "kv-2" }));
      assert.equal(refused.code, Code.NotFound, method);
      assert.equal(refused.rawMessage, "this is process kv-1");
    }
    assert.equal((await call.getShutdownStatus(us)).state, State.RUNNING);
  });
}

test("WARMING is not READY", async (t) => {
  const runner = await startRunner(t, "unix", "--never-ready");
  const seen = await poll(() => client(runner.http).getReadinessStatus(us), (answer) => answer.state !== Readiness.STARTING);
  assert.equal(seen.at(-1).state, Readiness.WARMING);
});

test("an extension is told of, with its seconds and what it waits for", async (t) => {
  const runner = await startRunner(t, "unix", "--behavior", "request-more", "--drain-duration", "3s");
  const call = client(runner.http);
  await call.shutdown({ ...us, gracePeriodSeconds: 1, maxShutdownSeconds: 30 });
  const seen = await poll(() => call.getShutdownStatus(us), (answer) => answer.needMoreTime);
  assert.equal(seen.at(-1).state, State.SHUTDOWN_DRAINING);
  assert.equal(seen.at(-1).additionalSeconds, 5);
  assert.equal(await runner.end(), 0);
});

test("a drain that hangs is BLOCKED, and says on what", async (t) => {
  const runner = await startRunner(t, "unix", "--behavior", "hang");
  const call = client(runner.http);
  await call.shutdown(us);
  const seen = await poll(() => call.getShutdownStatus(us), (answer) => answer.state === State.SHUTDOWN_BLOCKED);
  assert.deepEqual(seen.at(-1).metrics.blockingOperations, ["waiting for nothing"]);
});

test("a drain cut off by its maximum ends with status 1, which is no COMPLETE", async (t) => {
  const runner = await startRunner(t, "tcp", "--behavior", "slow-drain", "--drain-duration", "60s");
  const call = client(runner.http);
  await call.shutdown({ ...us, gracePeriodSeconds: 1, maxShutdownSeconds: 1 });
  const states = new Set();
  await poll(
    () => call.getShutdownStatus(us).catch((error) => error),
    (answer) => {
      if (answer instanceof Error) assert.match(answer.message, ENDED);
      else states.add(answer.state);
      return answer instanceof Error;
    },
  );
  assert.equal(await runner.end(), 1);
  assert.ok(!states.has(State.SHUTDOWN_COMPLETE));
});

test("a client's timeout ends a call that a stopped process does not answer", async (t) => {
  const runner = await startRunner(t, "unix");
  const call = client(runner.http);
  assert.equal((await call.getShutdownStatus(us, { timeoutMs: 10_000 })).state, State.RUNNING);
  await runner.freeze();
  const late = await refusal(call.getShutdownStatus(us, { timeoutMs: 100 }));
  assert.equal(late.code, Code.DeadlineExceeded);
  runner.signal("SIGCONT");
  assert.equal((await call.getShutdownStatus(us)).state, State.RUNNING);
});

test("many calls at a time, on as many connections as the client likes", async (t) => {
  const runner = await startRunner(t, "tcp");
  const call = client(runner.http);
  const answers = await Promise.all(Array.from({ length: 40 }, () => call.getShutdownStatus(us)));
  for (const answer of answers) assert.equal(answer.state, State.RUNNING);
});
