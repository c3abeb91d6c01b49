package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/format"
	"github.com/squall-sre/squall/pipeline/source"
)

// newParseCommand makes `squall parse`: what squall understands of each line.
func newParseCommand() *cobra.Command {
	var o formatFlags
	var config string
	cmd := &cobra.Command{
		Use:   "parse [flags] PATH...",
		Short: "print the records and events of log lines as JSON",
		Long: "parse prints one JSON object for each line that is a request or an event, in the order of the input.\n" +
			"client_ip is reckoned by the trusted_proxies of --config, as explain and run reckon it.\n" +
			"A line that fits no format goes to standard error with its number and the reason; the exit code stays 0.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError(errors.New("parse needs at least one PATH: a file, a glob, a directory or -"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := loadConfig(config, os.LookupEnv)
			if err != nil {
				return err
			}
			chain, err := newChain(c, nil)
			if err != nil {
				return err
			}
			choice, err := o.choose()
			if err != nil {
				return err
			}
			files, err := source.Expand(args)
			if err != nil {
				return err
			}
			out := bufio.NewWriter(cmd.OutOrStdout())
			var unread []error
			for _, path := range files {
				p := lineParser{path: path, format: choice, zone: c.Timezone.Location, enricher: chain.For(o.site), out: out, failures: cmd.ErrOrStderr()}
				if err := p.file(cmd, path); err != nil {
					unread = append(unread, err) // the other files are read all the same
				}
			}
			return errors.Join(append(unread, out.Flush())...)
		},
	}
	o.add(cmd.Flags())
	cmd.Flags().StringVar(&config, "config", "", "configuration `FILE`: trusted proxies, time zone")
	return cmd
}

// lineParser prints what becomes of the lines of one file.
type lineParser struct {
	path     string
	format   formatChoice
	zone     *time.Location
	enricher pipeline.Enricher
	out      *bufio.Writer
	failures io.Writer
	line     int // the number of the last line
	text     []byte
	chosen   pipeline.Format
	told     bool // that no format fits
}

func (p *lineParser) file(cmd *cobra.Command, path string) error {
	in := io.NopCloser(cmd.InOrStdin())
	if path != "-" {
		var err error
		if in, err = source.Open(path); err != nil {
			return err
		}
	}
	defer in.Close() // it was only read
	o := opener{format: p.format, zone: p.zone}
	o.opened = func(_ *pipeline.Stream, f pipeline.Format) { p.chosen = f }
	road := pipeline.NewRoad(pipeline.RoadConfig{Input: path, Open: o.open, Enricher: p.enricher, Take: p.take})
	return source.ReadAll(cmd.Context(), &pipeline.Stream{Input: path, ID: path, Path: path}, in, road.Emit)
}

// take prints the items of a block. A line's number is that of its last physical line.
func (p *lineParser) take(w *pipeline.Work) error {
	defer w.Release()
	if !p.told {
		if text := misfit(p.path, p.chosen, failedLine(w.Items)); text != "" {
			p.told = true
			if _, err := fmt.Fprintln(p.failures, text); err != nil {
				return err
			}
		}
	}
	for i := range w.Items {
		it := &w.Items[i]
		switch it.Kind {
		case pipeline.Failed:
			number := p.line + it.Number
			if _, err := fmt.Fprintf(p.failures, "%s:%d:%d: %s: %s\n", p.path, number, it.Column+1, it.Reason, excerpt(it.Line)); err != nil {
				return err
			}
		case pipeline.IsRecord, pipeline.IsEvents:
			p.text = format.AppendJSON(p.text[:0], it)
			if _, err := p.out.Write(p.text); err != nil {
				return err
			}
		}
	}
	p.line += w.Batch.Lines
	return nil
}

// excerpt makes the beginning of a line fit for a terminal.
func excerpt(line []byte) string {
	const most = 160 // bytes
	if len(line) > most {
		return alerts.Escape(string(line[:most])) + "…"
	}
	return alerts.Escape(string(line))
}
