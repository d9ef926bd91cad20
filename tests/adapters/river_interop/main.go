// River's own client on the same queues: works on the kinds of examples/river_worker.cpp, and does what clients do. Prints
// JSON.
//
//	neighbour [FLAG...] work    ends with SIGTERM; with two, at once
//	neighbour insert            a line of its input for each: {"kind", "args", "max_attempts", "priority", "delay_ms"}
//	neighbour migrate [VERSION] | cancel ID... | retry ID... | list | queues | pause QUEUE | resume QUEUE
//
// All of them: DATABASE_URL.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"
)

type client = river.Client[pgx.Tx]

var (
	concurrency = flag.Int("concurrency", 10, "jobs at a time")
	connections = flag.Int("connections", 8, "to the database")
	cooldown    = flag.Duration("cooldown", river.FetchCooldownDefault, "between two claims")
	rescueAfter = flag.Duration("rescue-after", time.Hour, "for how long a job runs before it is stuck")
	traceFile   = flag.String("trace", os.DevNull, "where each run is noted")
	logger      = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
)

// Any kind, inserted with any arguments.
type anyArgs struct {
	kind string
	args json.RawMessage
}

func (a anyArgs) Kind() string                 { return a.kind }
func (a anyArgs) MarshalJSON() ([]byte, error) { return a.args, nil }

// The arguments of every kind that is worked on here.
type timed struct {
	kind string
	MS   int `json:"ms"`
}

func (t timed) Kind() string            { return t.kind }
func (t timed) duration() time.Duration { return time.Duration(t.MS) * time.Millisecond }

var kinds = map[string]func(context.Context, timed) error{
	"noop": func(context.Context, timed) error { return nil },
	"sleep": func(ctx context.Context, args timed) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(args.duration()):
			return nil
		}
	},
	"spin": func(_ context.Context, args timed) error {
		for end := time.Now().Add(args.duration()); time.Now().Before(end); {
		}
		return nil
	},
	"fail":   func(context.Context, timed) error { return errors.New("failed as asked") },
	"cancel": func(context.Context, timed) error { return river.JobCancel(errors.New("cancelled as asked")) },
	"snooze": func(_ context.Context, args timed) error { return river.JobSnooze(args.duration()) },
}

// Each run is two lines in a file that several processes append to, each by one write.
func workers() *river.Workers {
	trace, err := os.OpenFile(*traceFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	must(err)
	note := func(event string, job *rivertype.JobRow) {
		fmt.Fprintf(trace, "%s %d %d %d %s\n", event, job.ID, job.Attempt, os.Getpid(), job.Kind)
	}
	all := river.NewWorkers()
	for kind, run := range kinds {
		river.AddWorkerArgs(all, timed{kind: kind}, river.WorkFunc(func(ctx context.Context, job *river.Job[timed]) error {
			note("begin", job.JobRow)
			defer note("end", job.JobRow)
			return run(ctx, job.Args)
		}))
	}
	return all
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "neighbour:", err)
		os.Exit(1)
	}
}

func show(value any) { must(json.NewEncoder(os.Stdout).Encode(value)) }

func work(ctx context.Context, pool *pgxpool.Pool) {
	c, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		FetchCooldown:        *cooldown,
		JobTimeout:           min(time.Minute, *rescueAfter/2),
		Logger:               logger,
		Queues:               map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: *concurrency}},
		RescueStuckJobsAfter: *rescueAfter,
		Workers:              workers(),
	})
	must(err)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM)
	must(c.Start(ctx))
	show("started")
	<-signals
	show("stopping")
	go func() {
		<-signals
		_ = c.StopAndCancel(ctx)
	}()
	must(c.Stop(ctx))
}

func insert(ctx context.Context, c *client) (ids []int64) {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var wanted struct {
			Kind        string          `json:"kind"`
			Args        json.RawMessage `json:"args"`
			MaxAttempts int             `json:"max_attempts"`
			Priority    int             `json:"priority"`
			DelayMS     int             `json:"delay_ms"`
		}
		wanted.Args = json.RawMessage("{}")
		must(json.Unmarshal(lines.Bytes(), &wanted))
		options := &river.InsertOpts{MaxAttempts: wanted.MaxAttempts, Priority: wanted.Priority}
		if wanted.DelayMS > 0 {
			options.ScheduledAt = time.Now().Add(time.Duration(wanted.DelayMS) * time.Millisecond)
		}
		made, err := c.Insert(ctx, anyArgs{wanted.Kind, wanted.Args}, options)
		must(err)
		ids = append(ids, made.Job.ID)
	}
	return ids
}

func forEach(ctx context.Context, ids []string, do func(context.Context, int64) (*rivertype.JobRow, error)) {
	for _, text := range ids {
		id, err := strconv.ParseInt(text, 10, 64)
		must(err)
		_, err = do(ctx, id)
		must(err)
	}
}

func migrate(ctx context.Context, pool *pgxpool.Pool, version []string) (versions []int) {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	must(err)
	options := &rivermigrate.MigrateOpts{}
	if len(version) > 0 {
		options.TargetVersion, err = strconv.Atoi(version[0])
		must(err)
	}
	done, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, options)
	must(err)
	for _, each := range done.Versions {
		versions = append(versions, each.Version)
	}
	return versions
}

func main() {
	flag.Parse()
	ctx, command, rest := context.Background(), flag.Arg(0), flag.Args()[1:]
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	must(err)
	config.MaxConns = int32(*connections)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	must(err)
	defer pool.Close()
	c, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: logger})
	must(err)
	switch command {
	case "migrate":
		show(migrate(ctx, pool, rest))
	case "work":
		work(ctx, pool)
	case "insert":
		show(insert(ctx, c))
	case "cancel":
		forEach(ctx, rest, c.JobCancel)
	case "retry":
		forEach(ctx, rest, c.JobRetry)
	case "list":
		found, err := c.JobList(ctx, river.NewJobListParams().First(10_000))
		must(err)
		show(found.Jobs)
	case "queues":
		found, err := c.QueueList(ctx, river.NewQueueListParams())
		must(err)
		show(found.Queues)
	case "pause":
		must(c.QueuePause(ctx, rest[0], nil))
	case "resume":
		must(c.QueueResume(ctx, rest[0], nil))
	default:
		must(fmt.Errorf("no command %s", command))
	}
}
