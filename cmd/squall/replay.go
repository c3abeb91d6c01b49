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

	since, until string
	progress     string
	spool        bool
}

// newReplayCommand makes `squall replay`: past logs through the same detection as `squall run`.
func newReplayCommand() *cobra.Command {
	var o replayOptions
	cmd := &cobra.Command{
		Use:   "replay [flags] PATH...",
		Short: "run past logs through the detectors and print the alerts they would have raised",
		Long: "replay reads files, globs, directories or - (standard input), merges them by the time in their lines,\n" +
			"and prints every alert from its beginning to its end. Compressed files are read as such; an object\n" +
			"that was delivered twice counts once. The same lines give the same alerts as `squall run`.\n\n" +
			"--since and --until choose what is told, by the time in the lines: RFC 3339, or how long before now.\n" +
			"Lines before --since are judged too, so that windows are full and what is usual is known: give some.\n" +
			"With --from-spool, PATH is the spool.dir of a squall that is stopped (default: the configuration's).",
		Args: func(_ *cobra.Command, args []string) error {
			if o.spool && len(args) > 1 {
				return usageError(errors.New("--from-spool reads one spool at a time"))
			}
			if len(args) == 0 && !o.spool {
				return usageError(errors.New("replay needs at least one PATH: a file, a glob, a directory or -"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			easeCollector(replayCollector)
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
	f.StringArrayVar(&o.report.earlier, "compare", nil, "hold the report's incidents against those of an earlier report (`FILE` of --report-json) or of a daemon (its URL): did the last fix hold?")
	f.StringArrayVar(&o.report.marks, "annotate", nil, "note what was done on the report's timelines: `\"TIME TEXT\"`, TIME as RFC 3339")
	f.BoolVar(&o.detections, "detections", false, "with --json: the detectors' transitions too")
	f.StringVar(&o.failOn, "fail-on", "", "exit with 3 when an alert of this `SEVERITY` or a higher one fired")
	f.StringVar(&o.since, "since", "", "tell of what was logged at this `TIME` or later")
	f.StringVar(&o.until, "until", "", "read only what was logged before this `TIME`")
	f.BoolVar(&o.spool, "from-spool", false, "read the lines that `squall run` keeps in its spool")
	f.StringVar(&o.progress, "progress", progressAuto, "show on standard error how far it is: auto, always or never")
	f.IntVar(&o.workers, "workers", 0, "workers of the origin's `POOL`, for sites that the configuration does not list")
	return cmd
}

// prepare checks the flags and makes what replays.
func (o *replayOptions) prepare(stderr io.Writer) (*Config, *replayer, error) {
	c, err := loadConfig(o.config, os.LookupEnv)
	if err != nil {
		return nil, nil, err
	}
	if o.workers < 0 {
		return nil, nil, usageError(fmt.Errorf("--workers: %d workers are no pool", o.workers))
	}
	if o.workers > 0 {
		c.SiteDefaults.Pool.Workers = o.workers
	}
	if _, err := severityRank(o.failOn); err != nil {
		return nil, nil, usageError(err)
	}
	if err := errors.Join(o.report.check(o.json), checkProgress(o.progress)); err != nil {
		return nil, nil, err
	}
	within, err := parseRange(o.since, o.until, time.Now())
	if err != nil {
		return nil, nil, err
	}
	choice, err := o.choose()
	if err != nil {
		return nil, nil, usageError(err)
	}
	rep, err := newReplayer(c, choice, o.site, stderr)
	if err != nil {
		return nil, nil, err
	}
	rep.within = within
	return c, rep, nil
}

func replay(ctx context.Context, o replayOptions, paths []string, stdin io.Reader, stdout, stderr io.Writer) error {
	var a advance
	p := newProgress(o.progress, stderr, &a)
	stdout, stderr = p.Writer(stdout), p.Writer(stderr)
	c, rep, err := o.prepare(stderr)
	if err != nil {
		return err
	}
	rep.advance = &a
	told := stdout
	if o.report.toStdout() && o.json == "" {
		told = io.Discard // the report takes its place
	}
	out, err := newTranscript(o, told)
	if err != nil {
		return err
	}
	rep.judge.settled = out.settled
	collector := o.report.collect(c, rep)
	rep.judge.settled = rep.within.within(rep.judge, rep.judge.settled)
	started := time.Now()
	if err := p.during(ctx, func(ctx context.Context) error {
		if o.spool {
			return rep.runSpool(ctx, c, paths)
		}
		return rep.run(ctx, paths, stdin)
	}); err != nil {
		return errors.Join(err, out.out.Flush(), out.close())
	}
	total := &rep.judge.total
	total.before = rep.before
	err = errors.Join(rep.whole(), out.finish(total, time.Since(started)), o.report.write(ctx, collector, c, rep.judge, stdout), rep.blind())
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
