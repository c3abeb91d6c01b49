package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/format"
)

// newExplainCommand makes `squall explain`: what squall makes of one line.
func newExplainCommand() *cobra.Command {
	var o formatFlags
	var config string
	cmd := &cobra.Command{
		Use:   "explain [flags] LINE",
		Short: "tell how a line is parsed, where it is counted and which detectors it concerns",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError(errors.New("explain needs one LINE, quoted"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
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
	cmd.Flags().StringVar(&config, "config", "", "configuration `FILE`: sites, routes, own addresses, thresholds")
	return cmd
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
	var chosen pipeline.Format
	o := opener{format: choice, zone: c.Timezone.Location}
	o.opened = func(_ *pipeline.Stream, f pipeline.Format) { chosen = f }
	j.label = "explain"
	j.source("line", 0)
	road := pipeline.NewRoad(pipeline.RoadConfig{
		Input: "line", Open: o.open, Enricher: chain.For(site),
		Take: func(w *pipeline.Work) error {
			explainFormat(out, choice.name, chosen)
			for i := range w.Items {
				explainItem(out, &w.Items[i])
			}
			j.feed(w)
			return nil
		},
	})
	stream := &pipeline.Stream{Input: "line", ID: "line", Path: "line"}
	line = []byte(strings.TrimRight(string(line), "\n"))
	if err := road.Emit(&pipeline.Block{Stream: stream, Data: line, To: int64(len(line)), Last: true}); err != nil {
		return err
	}
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
	return nil
}

func explainFormat(out io.Writer, name string, f pipeline.Format) {
	a, ok := f.(*format.Auto)
	if !ok {
		fmt.Fprintf(out, "format    %s, as asked for\n", name)
		return
	}
	chosen, not := a.Choice()
	if chosen == "" {
		chosen = "none fits"
	}
	fmt.Fprintf(out, "format    %s\n", chosen)
	for _, r := range not {
		fmt.Fprintf(out, "          not %s: %s at column %d\n", r.Format, r.Reason, r.Column+1)
	}
}

func explainItem(out io.Writer, it *pipeline.Item) {
	switch it.Kind {
	case pipeline.Failed:
		fmt.Fprintf(out, "failed    %s at column %d: counted, shipped as it is, not detected\n", it.Reason, it.Column+1)
	case pipeline.Ignored:
		fmt.Fprintln(out, "ignored   understood, and neither a request nor an event")
	case pipeline.IsEvents:
		fmt.Fprintf(out, "events    %s", format.AppendJSON(nil, it))
	case pipeline.IsRecord:
		r := &it.Record
		fmt.Fprintf(out, "record    %s", format.AppendJSON(nil, it))
		fmt.Fprintf(out, "site      %s\nroute     %s\nclient    %s, %s\n", alerts.Escape(r.Site), alerts.Escape(r.Route), r.Origin, r.Class)
	}
}
