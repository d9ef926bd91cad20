// A neighbour on the same queues, of River's own making: works on the kinds of examples/river_worker.cpp, and does what
// clients do. What it prints is JSON.
//
//	neighbour migrate [VERSION]       River's own migrations
//	neighbour work                    QUEUES, CONCURRENCY, COOLDOWN, RESCUE_AFTER, TRACE; ends with SIGTERM, or, at once, two
//	neighbour insert                  {"kind", "args", "max_attempts", "priority", "queue", "delay_ms"} a line of its input
//	neighbour get|cancel|retry ID...
//	neighbour list
//	neighbour queues
//	neighbour pause|resume QUEUE
//
// All of them: DATABASE_URL.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
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

// Any kind, inserted with any arguments.
type anyArgs struct {
	kind string
	args json.RawMessage
}

func (a anyArgs) Kind() string                 { return a.kind }
func (a anyArgs) MarshalJSON() ([]byte, error) { return a.args, nil }

type timed struct {
	MS int `json:"ms"`
}

type noop struct{ timed }
type sleep struct{ timed }
type spin struct{ timed }
type fail struct{ timed }
type cancel struct{ timed }
type snooze struct{ timed }

func (noop) Kind() string   { return "noop" }
func (sleep) Kind() string  { return "sleep" }
func (spin) Kind() string   { return "spin" }
func (fail) Kind() string   { return "fail" }
func (cancel) Kind() string { return "cancel" }
func (snooze) Kind() string { return "snooze" }

func (t timed) duration() time.Duration { return time.Duration(t.MS) * time.Millisecond }

// One write a line, so that those of several processes in one file stand in the order in which they were written.
var trace *os.File

func note(event string, job *rivertype.JobRow) {
	if trace != nil {
		fmt.Fprintf(trace, "%s %d %d %d %s\n", event, job.ID, job.Attempt, os.Getpid(), job.Kind)
	}
}

func traced[T river.JobArgs](work func(context.Context, *river.Job[T]) error) river.Worker[T] {
	return river.WorkFunc(func(ctx context.Context, job *river.Job[T]) error {
		note("begin", job.JobRow)
		defer note("end", job.JobRow)
		return work(ctx, job)
	})
}

func workers() *river.Workers {
	all := river.NewWorkers()
	river.AddWorker(all, traced(func(context.Context, *river.Job[noop]) error { return nil }))
	river.AddWorker(all, traced(func(ctx context.Context, job *river.Job[sleep]) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(job.Args.duration()):
			return nil
		}
	}))
	river.AddWorker(all, traced(func(_ context.Context, job *river.Job[spin]) error {
		for end := time.Now().Add(job.Args.duration()); time.Now().Before(end); {
		}
		return nil
	}))
	river.AddWorker(all, traced(func(context.Context, *river.Job[fail]) error { return errors.New("failed as asked") }))
	river.AddWorker(all, traced(func(context.Context, *river.Job[cancel]) error {
		return river.JobCancel(errors.New("cancelled as asked"))
	}))
	river.AddWorker(all, traced(func(_ context.Context, job *river.Job[snooze]) error { return river.JobSnooze(job.Args.duration()) }))
	return all
}

func number(name string, otherwise int) int {
	if value, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return value
	}
	return otherwise
}

func span(name string, otherwise time.Duration) time.Duration {
	if value, err := time.ParseDuration(os.Getenv(name)); err == nil {
		return value
	}
	return otherwise
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "neighbour:", err)
		os.Exit(1)
	}
}

func show(value any) { must(json.NewEncoder(os.Stdout).Encode(value)) }

func work(ctx context.Context, pool *pgxpool.Pool) {
	if name := os.Getenv("TRACE"); name != "" {
		file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		must(err)
		trace = file
	}
	queues := map[string]river.QueueConfig{}
	for _, name := range strings.Split(os.Getenv("QUEUES"), ",") {
		if name == "" {
			name = river.QueueDefault
		}
		queues[name] = river.QueueConfig{MaxWorkers: number("CONCURRENCY", 10)}
	}
	rescue := span("RESCUE_AFTER", time.Hour)
	config := &river.Config{
		FetchCooldown:        span("COOLDOWN", river.FetchCooldownDefault),
		JobTimeout:           min(time.Minute, rescue/2),
		Logger:               slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Queues:               queues,
		RescueStuckJobsAfter: rescue,
		Workers:              workers(),
	}
	c, err := river.NewClient(riverpgxv5.New(pool), config)
	must(err)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	must(c.Start(ctx))
	show(map[string]string{"started": c.ID()})
	<-signals
	show(map[string]string{"stopping": c.ID()})
	go func() {
		<-signals
		_ = c.StopAndCancel(ctx)
	}()
	must(c.Stop(ctx))
	show(map[string]string{"stopped": c.ID()})
}

type wanted struct {
	Kind        string          `json:"kind"`
	Args        json.RawMessage `json:"args"`
	MaxAttempts int             `json:"max_attempts"`
	Priority    int             `json:"priority"`
	Queue       string          `json:"queue"`
	DelayMS     int             `json:"delay_ms"`
}

func insert(ctx context.Context, c *client) {
	var all []river.InsertManyParams
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		one := wanted{Args: json.RawMessage("{}")}
		must(json.Unmarshal(lines.Bytes(), &one))
		options := &river.InsertOpts{MaxAttempts: one.MaxAttempts, Priority: one.Priority, Queue: one.Queue}
		if one.DelayMS > 0 {
			options.ScheduledAt = time.Now().Add(time.Duration(one.DelayMS) * time.Millisecond)
		}
		all = append(all, river.InsertManyParams{Args: anyArgs{one.Kind, one.Args}, InsertOpts: options})
	}
	results, err := c.InsertMany(ctx, all)
	must(err)
	ids := make([]int64, 0, len(results))
	for _, each := range results {
		ids = append(ids, each.Job.ID)
	}
	show(ids)
}

func forEach(ids []string, do func(int64) (*rivertype.JobRow, error)) {
	rows := make([]*rivertype.JobRow, 0, len(ids))
	for _, text := range ids {
		id, err := strconv.ParseInt(text, 10, 64)
		must(err)
		row, err := do(id)
		must(err)
		rows = append(rows, row)
	}
	show(rows)
}

func list(ctx context.Context, c *client) {
	found, err := c.JobList(ctx, river.NewJobListParams().First(10_000))
	must(err)
	show(found.Jobs)
}

func migrate(ctx context.Context, pool *pgxpool.Pool, version []string) {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	must(err)
	options := &rivermigrate.MigrateOpts{}
	if len(version) > 0 {
		options.TargetVersion, err = strconv.Atoi(version[0])
		must(err)
	}
	done, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, options)
	must(err)
	versions := make([]int, 0, len(done.Versions))
	for _, each := range done.Versions {
		versions = append(versions, each.Version)
	}
	show(versions)
}

func main() {
	if len(os.Args) < 2 {
		must(errors.New("a command is wanted; see the head of main.go"))
	}
	ctx, command, rest := context.Background(), os.Args[1], os.Args[2:]
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	must(err)
	config.MaxConns = int32(number("CONNECTIONS", 8))
	pool, err := pgxpool.NewWithConfig(ctx, config)
	must(err)
	defer pool.Close()
	c, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	must(err)
	switch command {
	case "migrate":
		migrate(ctx, pool, rest)
	case "work":
		work(ctx, pool)
	case "insert":
		insert(ctx, c)
	case "get":
		forEach(rest, func(id int64) (*rivertype.JobRow, error) { return c.JobGet(ctx, id) })
	case "cancel":
		forEach(rest, func(id int64) (*rivertype.JobRow, error) { return c.JobCancel(ctx, id) })
	case "retry":
		forEach(rest, func(id int64) (*rivertype.JobRow, error) { return c.JobRetry(ctx, id) })
	case "list":
		list(ctx, c)
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
