# The worker of examples/deploy/Dockerfile as a Nomad job: `nomad job run examples/deploy/ojs-worker.nomad.hcl`.
#
# The time budget, in seconds:
#      80  the grace period: the longest job (60), a heartbeat (10), and a margin (10)
#   +   5  interrupting and reporting what is left (OJS_STOP_TIMEOUT)
#   +  10  to spare
#   =  95  kill_timeout
job "ojs-worker" {
  group "workers" {
    count = 3

    task "worker" {
      driver = "docker"
      config {
        image = "ojs-worker:0.1.0"
        # The exec form: a shell would not forward the signal.
        entrypoint = ["/worker"]
        readonly_rootfs = true
        cap_drop = ["all"]
      }
      # The default is SIGINT, which has the same effect.
      kill_signal = "SIGTERM"
      # The default of 5 s is too short to drain. A client limits it to its max_kill_timeout (default: 30 s).
      kill_timeout = "95s"
      env {
        OJS_URL = "http://ojs-backend:8080"
        OJS_CONCURRENCY = "10"
        OJS_HEARTBEAT_INTERVAL = "10s"
        OJS_SHUTDOWN_GRACE_PERIOD = "80s"
        OJS_STOP_TIMEOUT = "5s"
        # Equal to kill_timeout, which the worker cannot read: it warns at start if the sum does not fit.
        OJS_CONTAINER_GRACE_PERIOD = "95s"
        OJS_LOG_FORMAT = "json"
      }
      # 32 MB and 8 MB for each job, of which 10 run at a time, are 112.
      resources {
        cpu = 100
        memory = 128
      }
    }
  }
}
