// The worker that shutdown-probe and compare.py ask for, on the official Go SDK.
package main

import (
	"context"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	ojs "github.com/openjobspec/ojs-go-sdk"
)

func duration(name string, otherwise time.Duration) time.Duration {
	if set, err := time.ParseDuration(os.Getenv(name)); err == nil {
		return set
	}
	return otherwise
}

func asked(job ojs.JobContext) time.Duration {
	return time.Duration(job.Job.RawArgs[0].(float64)) * time.Millisecond
}

func sleep(job ojs.JobContext) error {
	select {
	case <-time.After(asked(job)):
		return nil
	case <-job.Context().Done():
		return job.Context().Err()
	}
}

func spin(job ojs.JobContext) error {
	for end := time.Now().Add(asked(job)); time.Now().Before(end); {
	}
	return nil
}

func noop(ojs.JobContext) error { return nil }

func main() {
	stop, release := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer release()
	concurrency, err := strconv.Atoi(os.Getenv("OJS_CONCURRENCY"))
	if err != nil {
		concurrency = 10
	}
	// The default client keeps two connections to a host, and opens another one for most requests of ten jobs.
	kept := http.DefaultTransport.(*http.Transport).Clone()
	kept.MaxIdleConnsPerHost = 2 * concurrency
	queues := os.Getenv("OJS_QUEUES")
	if queues == "" {
		queues = "default"
	}
	worker := ojs.NewWorker(os.Getenv("OJS_URL"),
		ojs.WithQueues(strings.Split(queues, ",")...),
		ojs.WithConcurrency(concurrency),
		ojs.WithGracePeriod(duration("OJS_SHUTDOWN_GRACE_PERIOD", 25*time.Second)),
		ojs.WithHeartbeatInterval(duration("OJS_HEARTBEAT_INTERVAL", 5*time.Second)),
		ojs.WithPollInterval(duration("OJS_POLL_INTERVAL", time.Second)),
		ojs.WithWorkerHTTPClient(&http.Client{Transport: kept}),
	)
	worker.Register("probe.sleep", sleep)
	worker.Register("probe.spin", spin)
	worker.Register("noop", noop)
	if err := worker.Start(stop); err != nil {
		panic(err)
	}
}
