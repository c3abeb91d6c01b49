package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/squall-sre/squall/cmd/squall/simulate"
)

// newDemoCommand makes `squall demo`: the daemon on the embedded default, with nothing to edit.
func newDemoCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "demo [LOGS...]",
		Short: "run on the embedded default: over a simulated storm, or over your own logs",
		Long: "demo runs the daemon without a configuration file. Without LOGS it tails the log of a demo site that a\n" +
			"simulated storm is being written to; with LOGS (files or quoted globs) it tails those.",
		RunE: func(cmd *cobra.Command, logs []string) error {
			return demo(cmd, o, logs)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.level, "log.level", "warn", "`LEVEL` of the log on standard error: debug, info, warn or error")
	f.StringVar(&o.listen, "web.listen-address", "127.0.0.1:9177", "`ADDRESS` of the HTTP server")
	return cmd
}

// demoLead is how much quiet time lies before the demo's storm when it starts: the baseline has it to learn from.
const demoLead = 9*time.Minute + 45*time.Second

func demo(cmd *cobra.Command, o runOptions, logs []string) error {
	dir, err := os.MkdirTemp("", "squall-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) // it is in the system's temporary folder
	simulated := len(logs) == 0
	if simulated {
		logs = []string{filepath.Join(dir, "access.log")}
	}
	if logs, err = absolute(logs); err != nil {
		return usageError(err)
	}
	file := filepath.Join(dir, "squall.yaml")
	if err := os.WriteFile(file, []byte(demoConfig(dir, logs, simulated)), 0o600); err != nil {
		return err
	}
	o.config = file
	load := func() (*Config, error) {
		c, err := loadConfig(file, os.LookupEnv)
		if err == nil {
			c.Web.Listen = o.listen
		}
		return c, err
	}
	out := cmd.OutOrStdout()
	what := fmt.Sprintf("squall reads %s (spool in %s, gone at the end)", strings.Join(logs, " "), dir)
	if simulated {
		what = fmt.Sprintf("A storm is simulated: a mailing goes out in 15 s, and mail scanners fetch its link from 250 addresses. Log: %s", logs[0])
	}
	fmt.Fprintln(out, what)
	for _, pattern := range logs {
		if found, err := filepath.Glob(pattern); err == nil && len(found) == 0 {
			fmt.Fprintf(out, "No file matches %s yet: squall waits for one.\n", pattern)
		}
	}
	fmt.Fprintf(out, "Alerts are printed below as they fire; http://%s/ shows them, /metrics the numbers. Ctrl-C ends it.\n", o.listen)
	fmt.Fprintln(out, "For your own log: make run LOGS='/var/log/nginx/*access*.log'; for past logs: bin/squall replay FILE...")

	g, ctx := errgroup.WithContext(cmd.Context())
	g.Go(func() error { return serve(ctx, o, load, cmd.InOrStdin(), out) })
	if simulated {
		g.Go(func() error { return writeDemo(ctx, logs[0]) })
	}
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// absolute makes paths independent of the working directory, as the configuration wants them.
func absolute(paths []string) ([]string, error) {
	out := make([]string, len(paths))
	for i, p := range paths {
		var err error
		if out[i], err = filepath.Abs(p); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func demoConfig(dir string, logs []string, simulated bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "sources:\n  - {name: access, type: file, format: auto, paths: [")
	for i, l := range logs {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q", strings.ReplaceAll(l, "$", "$$"))
	}
	fmt.Fprintf(&b, "]}\nspool: {dir: %q}\n", strings.ReplaceAll(filepath.Join(dir, "spool"), "$", "$$"))
	if simulated {
		b.WriteString("site_defaults: {pool: {workers: 25, reclaim_timeout: 60s}}\n")
	}
	return b.String()
}

// writeDemo writes the demo's log: its quiet part at once, the rest as time goes by.
func writeDemo(ctx context.Context, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close() // each write is checked
	scenario, err := simulate.Named("demo")
	if err != nil {
		return err
	}
	_, err = simulate.Run(ctx, simulate.Options{
		Scenario: scenario, Seed: 1, Start: time.Now().Add(-demoLead).UTC(),
		Pace: simulate.LivePace(time.Now, sleep),
	}, f)
	if err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
