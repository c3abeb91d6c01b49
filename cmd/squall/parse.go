package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
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
	cmd := &cobra.Command{
		Use:   "parse [flags] PATH...",
		Short: "print the records and events of log lines as JSON",
		Long: "parse prints one JSON object for each line that is a request or an event, in the order of the input.\n" +
			"A line that fits no format goes to standard error with its number and the reason; the exit code stays 0.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError(errors.New("parse needs at least one PATH: a file, a glob, a directory or -"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			choice, err := o.choose()
			if err != nil {
				return err
			}
			files, err := source.Expand(args)
			if err != nil {
				return usageError(err)
			}
			out := bufio.NewWriter(cmd.OutOrStdout())
			for _, path := range files {
				p := lineParser{path: path, format: choice, out: out, failures: cmd.ErrOrStderr()}
				if err := p.file(cmd, path); err != nil {
					return errors.Join(err, out.Flush())
				}
			}
			return out.Flush()
		},
	}
	o.add(cmd.Flags())
	return cmd
}

// lineParser prints what becomes of the lines of one file.
type lineParser struct {
	path     string
	format   formatChoice
	out      *bufio.Writer
	failures io.Writer
	line     int // the number of the last line
	text     []byte
}

func (p *lineParser) file(cmd *cobra.Command, path string) error {
	in := io.NopCloser(cmd.InOrStdin())
	if path != "-" {
		var err error
		if in, err = source.Open(path); err != nil {
			return err
		}
	}
	defer in.Close() //nolint:errcheck // it was only read
	road := pipeline.NewRoad(pipeline.RoadConfig{
		Input: path, Open: opener{format: p.format, zone: time.UTC}.open, Enricher: unenriched{}, Take: p.take,
	})
	return source.ReadAll(cmd.Context(), &pipeline.Stream{Input: path, ID: path, Path: path}, in, road.Emit)
}

// unenriched leaves records as their lines tell them.
type unenriched struct{}

func (unenriched) Enrich(*pipeline.Record) {}

// take prints the items of a block. A line's number is that of its last physical line.
func (p *lineParser) take(w *pipeline.Work) error {
	defer w.Release()
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
