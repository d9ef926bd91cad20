# The worker of examples/deploy/Dockerfile as a Nomad job: `nomad job run examples/deploy/ojs-worker.nomad.hcl`.
#
# Who may take how long, in seconds:
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
        # Brackets here too, and no shell, which would keep the signal to itself.
        entrypoint = ["/worker"]
        readonly_rootfs = true
        cap_drop = ["all"]
      }
      # The default is SIGINT, which the worker takes in the same way.
      kill_signal = "SIGTERM"
      # The default is 5 s, in which nothing drains. A client cuts it to its own max_kill_timeout, 30 s unless set there.
      kill_timeout = "95s"
      env {
        OJS_URL = "http://ojs-backend:8080"
        OJS_CONCURRENCY = "10"
        OJS_HEARTBEAT_INTERVAL = "10s"
        OJS_SHUTDOWN_GRACE_PERIOD = "80s"
        OJS_STOP_TIMEOUT = "5s"
        # The same as kill_timeout: the worker cannot see that one, and warns at its start where the sum is wrong.
        OJS_CONTAINER_GRACE_PERIOD = "95s"
        OJS_LOG_FORMAT = "json"
      }
      # 32 MB and 8 MB for each job that may run are 112.
      resources {
        cpu = 100
        memory = 128
      }
    }
  }
}
