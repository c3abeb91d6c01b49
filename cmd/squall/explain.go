package main

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/enrich"
	"github.com/squall-sre/squall/pipeline/format"
)

// newExplainCommand makes `squall explain`: what squall makes of one line.
func newExplainCommand() *cobra.Command {
	var o formatFlags
	var config, detector string
	cmd := &cobra.Command{
		Use:   "explain [flags] LINE | explain --detector NAME",
		Short: "tell how a line is parsed, where it is counted and which detectors it concerns; or what a detector does",
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case detector != "" && len(args) > 0:
				return usageError(errors.New("explain takes a LINE or --detector, not both"))
			case detector == "" && len(args) != 1:
				return usageError(errors.New("explain needs one LINE, quoted"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if detector != "" {
				return explainDetector(cmd.OutOrStdout(), detector)
			}
			c, err := loadConfig(config, os.LookupEnv)
			if err != nil {
				return err
			}
			choice, err := o.choose()
			if err != nil {
				return err
			}
			out := bufio.NewWriter(cmd.OutOrStdout())
			if err := explain(c, choice, o.site, []byte(args[0]), out); err != nil {
				return errors.Join(err, out.Flush())
			}
			return out.Flush()
		},
	}
	o.add(cmd.Flags())
	cmd.Flags().StringVar(&detector, "detector", "", "tell what the detector `NAME` watches, when it fires and what to do then")
	cmd.Flags().StringVar(&config, "config", "", "configuration `FILE`: sites, routes, own addresses, thresholds")
	return cmd
}

// explainDetector tells what there is to know of a detector, with the defaults of its settings.
func explainDetector(out io.Writer, name string) error {
	h, settings, err := detectors.HelpFor(name)
	if err != nil {
		return usageError(fmt.Errorf("no detector %q: there are %s", name, strings.Join(detectors.Names(), ", ")))
	}
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, "%s\n\nWatches\n  %s\n\nFires when\n  %s\n\nSettings and their defaults (detectors.%s)\n", name, h.Watches, h.Formula, name)
	for _, s := range settings {
		fmt.Fprintf(w, "  %-18s %s\n", s.Name, s.Value)
	}
	fmt.Fprintf(w, "\nEvidence\n  %s\n", strings.Join(h.Evidence, ", "))
	for _, part := range []struct {
		title string
		lines []string
	}{{"False positives", h.FalsePositives}, {"Runbook", h.Runbook}} {
		fmt.Fprintf(w, "\n%s\n", part.title)
		for _, l := range part.lines {
			fmt.Fprintf(w, "  - %s\n", l)
		}
	}
	return w.Flush()
}

// explain takes the line down the road of a replay and tells of each step.
func explain(c *Config, choice formatChoice, site string, line []byte, out io.Writer) error {
	j, err := newJudge(c, nil, 0)
	if err != nil {
		return err
	}
	chain, err := newChain(c, nil)
	if err != nil {
		return err
	}
	if line = bytes.TrimRight(line, "\r\n"); len(line) == 0 {
		return usageError(errors.New("explain needs a LINE; this one is empty"))
	}
	var chosen pipeline.Format
	o := opener{format: choice, zone: c.Timezone.Location}
	o.opened = func(_ *pipeline.Stream, f pipeline.Format) { chosen = f }
	framing, guessed, err := o.framingOf(line)
	if err != nil {
		return err
	}
	if guessed {
		fmt.Fprintf(out, "framing   %s, found by the line\n", framing)
	}
	clients := &clientTracer{chain: chain, enricher: chain.For(site)}
	j.label = "explain"
	j.source("line", 0)
	road := pipeline.NewRoad(pipeline.RoadConfig{
		Input: "line", Open: o.open, Enricher: clients,
		Take: func(w *pipeline.Work) error {
			explainFormat(out, choice.name, c.Timezone.Location, chosen, failedLine(w.Items))
			sources := clients.sources
			for i := range w.Items {
				if w.Items[i].Kind == pipeline.IsRecord {
					explainRecord(out, chain, &w.Items[i], sources[0])
					sources = sources[1:]
					continue
				}
				explainItem(out, &w.Items[i])
			}
			if len(w.Items) == 1 {
				if f, err := tracedFormat(choice, c.Timezone.Location, chosen); err == nil {
					explainFields(out, tracer{format: f, clients: clients}, w.Items[0].Line, max(bytes.Index(line, w.Items[0].Line), 0))
				}
			}
			j.feed(w)
			return nil
		},
	})
	if err := road.Emit(wholeLine(line)); err != nil {
		return err
	}
	explainPanes(out, j)
	return nil
}

// wholeLine is a line as a source would hand it over that read it to its end.
func wholeLine(line []byte) *pipeline.Block {
	stream := &pipeline.Stream{Input: "line", ID: "line", Path: "line"}
	return &pipeline.Block{Stream: stream, Data: line, To: int64(len(line)), Last: true}
}

// tracedFormat opens the format that a line was read with once more; a format keeps memory of the lines it saw.
func tracedFormat(choice formatChoice, zone *time.Location, used pipeline.Format) (pipeline.Format, error) {
	if auto, ok := used.(*format.Auto); ok {
		choice.name, _ = auto.Choice()
	}
	return choice.open(zone)
}

func explainPanes(out io.Writer, j *judge) {
	j.panes.Flush()
	for p := j.panes.Next(); p != nil; p = j.panes.Next() {
		for _, site := range p.SiteNames() {
			for _, k := range p.Sites[site].Keys() {
				fmt.Fprintf(out, "cell      site %s, method %s, route %s, origin %s, probe %t, pane %s\n",
					alerts.Escape(site), k.Method, alerts.Escape(k.Route), k.Origin, k.Probe, formatTime(p.Start))
			}
		}
		for _, t := range j.engine.Touch(p) {
			fmt.Fprintf(out, "detector  %s: %s\n", t.Detector, alerts.Escape(t.What))
		}
	}
}

// explainFormat tells which format was used. failed is a line that it did not read, nil for none.
func explainFormat(out io.Writer, name string, zone *time.Location, f pipeline.Format, failed []byte) {
	a, ok := f.(*format.Auto)
	if !ok {
		fmt.Fprintf(out, "format    %s, as asked for\n", name)
		if failed != nil {
			fmt.Fprintf(out, "          it does not read the line; %s\n", cmp.Or(nearestTo(failed, zone), "nor does any other"))
		}
		return
	}
	chosen, not := a.Choice()
	if chosen == "" {
		fmt.Fprintf(out, "format    %s\n", misfit("none", f, failed))
	} else {
		fmt.Fprintf(out, "format    %s\n", chosen)
	}
	var strangers int
	for _, r := range not {
		if r.Column == 0 {
			strangers++
			continue
		}
		fmt.Fprintf(out, "          not %s: %s at column %d\n", r.Format, r.Reason, r.Column+1)
	}
	if strangers > 0 {
		fmt.Fprintf(out, "          not %d others, from the first byte on\n", strangers)
	}
}

// A clientTracer enriches records and keeps what the client's address of each was taken from.
type clientTracer struct {
	chain    *enrich.Chain
	enricher pipeline.Enricher
	sources  []enrich.ClientSource
}

// Enrich fills in what the configuration knows.
func (t *clientTracer) Enrich(r *pipeline.Record) {
	t.sources = append(t.sources, t.chain.ClientSource(r))
	t.enricher.Enrich(r)
}

func explainItem(out io.Writer, it *pipeline.Item) {
	switch it.Kind {
	case pipeline.Failed:
		fmt.Fprintf(out, "failed    %s at column %d: counted, shipped as it is, not detected\n", it.Reason, it.Column+1)
	case pipeline.Ignored:
		fmt.Fprintln(out, "ignored   understood, and neither a request nor an event")
	case pipeline.IsEvents:
		fmt.Fprintf(out, "events    %s", format.AppendJSON(nil, it))
	}
}

func explainRecord(out io.Writer, chain *enrich.Chain, it *pipeline.Item, source enrich.ClientSource) {
	r := &it.Record
	fmt.Fprintf(out, "record    %s", format.AppendJSON(nil, it))
	fmt.Fprintf(out, "site      %s\n", alerts.Escape(r.Site))
	// Explain escapes what it quotes; its first line is the route.
	lines := strings.Split(strings.TrimRight(chain.Explain(r.Site, string(r.Path)), "\n"), "\n")
	fmt.Fprintf(out, "route     %s\n", lines[0])
	for _, why := range lines[1:] {
		fmt.Fprintf(out, "          %s\n", strings.TrimSpace(why))
	}
	fmt.Fprintf(out, "client    %s, %s: %s\n", r.Origin, r.Class, source)
}
