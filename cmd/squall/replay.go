package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
)

// replayOptions are the flags of `squall replay`.
type replayOptions struct {
	formatFlags

	config, json string
	detections   bool
	failOn       string
	workers      int
	report       reportFiles
}

// newReplayCommand makes `squall replay`: past logs through the same detection as `squall run`.
func newReplayCommand() *cobra.Command {
	var o replayOptions
	cmd := &cobra.Command{
		Use:   "replay [flags] PATH...",
		Short: "run past logs through the detectors and print the alerts they would have raised",
		Long: "replay reads files, globs, directories or - (standard input), merges them by the time in their lines,\n" +
			"and prints every alert from its beginning to its end. Compressed files are read as such; an object\n" +
			"that was delivered twice counts once. The same lines give the same alerts as `squall run`.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError(errors.New("replay needs at least one PATH: a file, a glob, a directory or -"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return replay(cmd.Context(), o, args, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.config, "config", "", "configuration `FILE`; without one the defaults")
	o.add(f)
	f.StringVar(&o.json, "json", "", "write one JSON object for each alert transition, and a summary, to `FILE` (- for standard output)")
	f.StringVar(&o.report.html, "html", "", "write the incident report to `FILE`, as one page that needs nothing else (- for standard output)")
	f.StringVar(&o.report.markdown, "markdown", "", "write the incident report to `FILE`, for a ticket")
	f.StringVar(&o.report.json, "report-json", "", "write the incident report to `FILE`, as JSON")
	f.BoolVar(&o.detections, "detections", false, "with --json: the detectors' transitions too")
	f.StringVar(&o.failOn, "fail-on", "", "exit with 3 when an alert of this `SEVERITY` or a higher one fired")
	f.IntVar(&o.workers, "workers", 0, "workers of the origin's `POOL`, for sites that the configuration does not list")
	return cmd
}

func replay(ctx context.Context, o replayOptions, paths []string, stdin io.Reader, stdout, stderr io.Writer) error {
	c, err := loadConfig(o.config, os.LookupEnv)
	if err != nil {
		return err
	}
	if o.workers < 0 {
		return usageError(fmt.Errorf("--workers: %d workers are no pool", o.workers))
	}
	if o.workers > 0 {
		c.SiteDefaults.Pool.Workers = o.workers
	}
	if _, err := severityRank(o.failOn); err != nil {
		return usageError(err)
	}
	if err := o.report.check(o.json); err != nil {
		return err
	}
	choice, err := o.choose()
	if err != nil {
		return usageError(err)
	}
	rep, err := newReplayer(c, choice, o.site, stderr)
	if err != nil {
		return err
	}
	told := stdout
	if o.report.toStdout() && o.json == "" {
		told = io.Discard // the report takes its place
	}
	out, err := newTranscript(o, told)
	if err != nil {
		return err
	}
	rep.judge.settled = out.settled
	collector := o.report.collect(c, rep.judge)
	started := time.Now()
	if err := rep.run(ctx, paths, stdin); err != nil {
		return errors.Join(err, out.out.Flush(), out.close())
	}
	total := &rep.judge.total
	err = errors.Join(rep.whole(), out.finish(total, time.Since(started)), o.report.write(collector, c, rep.judge, stdout), rep.blind())
	if 10*total.late > total.parsed {
		fmt.Fprintf(stderr, "%d of %d lines came too late to be detected: their times go back (cat of several files? an order that is not time's?)\n",
			total.late, total.parsed)
	}
	if o.failOn != "" && out.reached(o.failOn) {
		fired := &exitError{exitFailOn, fmt.Errorf("an alert of severity %s or higher fired", o.failOn)}
		return errors.Join(fired, err)
	}
	return err
}
