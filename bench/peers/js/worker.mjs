// The worker that shutdown-probe and compare.py ask for, on the official JavaScript SDK.
import { Worker } from 'node:worker_threads';

import { OJSWorker } from '@openjobspec/sdk';

const UNITS = { ms: 1, s: 1000, m: 60000 };

// 500ms, 30s, 1m30s
function duration(name, otherwise) {
  const parts = [...(process.env[name] ?? '').matchAll(/(\d+)(ms|s|m)/g)];
  return parts.length ? parts.reduce((sum, [, number, unit]) => sum + number * UNITS[unit], 0) : otherwise;
}

const worker = new OJSWorker({
  url: process.env.OJS_URL,
  queues: (process.env.OJS_QUEUES ?? 'default').split(','),
  concurrency: Number(process.env.OJS_CONCURRENCY ?? 10),
  shutdownTimeout: duration('OJS_SHUTDOWN_GRACE_PERIOD', 25000),
  heartbeatInterval: duration('OJS_HEARTBEAT_INTERVAL', 5000),
  pollInterval: duration('OJS_POLL_INTERVAL', 1000),
  visibilityTimeout: duration('OJS_VISIBILITY_TIMEOUT', 30000),
  handleSignals: false, // below, so that the process leaves when stop() has
});

worker.register('probe.sleep', (ctx) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, ctx.job.args[0]);
  ctx.signal.addEventListener('abort', () => {
    clearTimeout(timer);
    reject(new Error('cancelled'));
  });
}));

// In a thread of its own, so that the worker continues its heartbeats.
const SPIN = "const end = Date.now() + require('node:worker_threads').workerData; while (Date.now() < end) {}";
worker.register('probe.spin', (ctx) => new Promise((resolve) => {
  new Worker(SPIN, { eval: true, workerData: ctx.job.args[0] }).on('exit', () => resolve());
}));

worker.register('noop', async () => {});

for (const signal of ['SIGTERM', 'SIGINT']) {
  process.on(signal, async () => {
    await worker.stop();
    process.exit(0);
  });
}
await worker.start();
