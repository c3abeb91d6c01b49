package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/pipeline/spool"
)

// ledgerOptions say where incidents are kept.
type ledgerOptions struct {
	daemonFlags

	json bool
}

// newIncidentsCommand makes `squall incidents`: did the last fix hold?
func newIncidentsCommand() *cobra.Command {
	var o ledgerOptions
	cmd := &cobra.Command{
		Use:   "incidents",
		Short: "list the incidents that were kept, and compare two: did the last fix hold?",
		Long: "incidents asks the daemon, by its HTTP API. With --config and a daemon that is not running, it reads the\n" +
			"daemon's spool. An incident may also be one of a report of `squall replay --report-json`: FILE.json is its\n" +
			"worst, FILE.json#ID another.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f := cmd.PersistentFlags()
	o.add(f)
	f.BoolVar(&o.json, "json", false, "write JSON")
	sub := func(use, short string, n int, do func(ctx context.Context, b *book, args []string, out io.Writer) error) {
		cmd.AddCommand(&cobra.Command{
			Use: use, Short: short, Args: func(c *cobra.Command, args []string) error { return usageIf(cobra.ExactArgs(n)(c, args)) },
			RunE: func(c *cobra.Command, args []string) error {
				b := &book{ledgerOptions: o}
				return do(c.Context(), b, args, c.OutOrStdout())
			},
		})
	}
	sub("list", "the incidents, the newest first", 0, listIncidents)
	sub("show ID", "one incident, and what became of the fix of the one before", 1, showIncident)
	sub("compare A B", "the later of two incidents against the earlier", 2, compareIncidents)
	return cmd
}

// A book is a ledger to read: the daemon's, or reports.
type book struct {
	ledgerOptions

	read    bool
	entries []alerts.Entry
	marks   []alerts.Mark
}

// open reads the daemon's ledger, once.
func (b *book) open(ctx context.Context) error {
	if b.read {
		return nil
	}
	b.read = true
	c, err := b.configured()
	if err != nil {
		return err
	}
	client, err := b.client(c)
	if err != nil {
		return err
	}
	err = b.ask(ctx, client)
	if err == nil || b.url != "" || b.config == "" {
		return err
	}
	if spooled := b.spooled(ctx, c); spooled != nil {
		return errors.Join(err, spooled)
	}
	return nil
}

// ask reads the ledger over HTTP.
func (b *book) ask(ctx context.Context, daemon *daemonClient) error {
	var incidents struct{ Incidents []alerts.Entry }
	var marks struct{ Annotations []alerts.Mark }
	for path, into := range map[string]any{"incidents": &incidents, "annotations": &marks} {
		answer, err := daemon.call(ctx, http.MethodGet, "/api/v1/"+path, nil)
		if err != nil {
			return fmt.Errorf("ask the daemon: %w", err)
		}
		if err := json.Unmarshal(answer, into); err != nil {
			return fmt.Errorf("understand the daemon's answer: %w", err)
		}
	}
	b.entries, b.marks = append(b.entries, incidents.Incidents...), append(b.marks, marks.Annotations...)
	return nil
}

// spooled reads the ledger from the spool of a daemon that is not running.
func (b *book) spooled(ctx context.Context, c *Config) error {
	if _, err := os.Stat(c.Spool.Dir); err != nil {
		return err
	}
	store, err := spool.Open(ctx, spool.Config{Dir: c.Spool.Dir, MaxBytes: int64(c.Spool.MaxBytes), MaxAge: c.Spool.MaxAge, Log: zap.NewNop()})
	if err != nil {
		return err
	}
	defer closeSpool(context.Background(), store, zap.NewNop())
	kept := newIncidentBook(store)
	err = kept.load(ctx)
	b.entries, b.marks = append(b.entries, kept.Entries()...), append(b.marks, kept.Marks()...)
	return err
}

// reported reads the incidents of a report.
func (b *book) reported(file string) ([]alerts.Entry, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close() // it was only read
	var r struct {
		Schema      int
		Ledger      []alerts.Entry
		Annotations []alerts.Mark
	}
	if err := json.NewDecoder(io.LimitReader(f, maxAnswer)).Decode(&r); err != nil || len(r.Ledger) == 0 {
		return nil, fmt.Errorf("%s is no report of squall replay --report-json with incidents: %w", file, cmp.Or(err, errors.New("it has none")))
	}
	b.marks = append(b.marks, r.Annotations...)
	return r.Ledger, nil
}

// find gives the incident that an argument means: an ID, FILE.json or FILE.json#ID.
func (b *book) find(ctx context.Context, arg string) (*alerts.Entry, error) {
	file, id, _ := strings.Cut(arg, "#")
	if _, err := os.Stat(file); err == nil || strings.HasSuffix(file, ".json") {
		list, err := b.reported(file)
		if err != nil {
			return nil, err
		}
		for i := range list {
			if id == "" || list[i].ID == id {
				return &list[i], nil
			}
		}
		return nil, fmt.Errorf("%s has no incident %s", file, id)
	}
	if err := b.open(ctx); err != nil {
		return nil, err
	}
	for i := range b.entries {
		if b.entries[i].ID == arg {
			return &b.entries[i], nil
		}
	}
	return nil, fmt.Errorf("no incident %s: squall incidents list tells which there are", arg)
}

func writeIndented(out io.Writer, v any) error {
	doc, err := alerts.AppendJSONDocument(nil, v)
	if err != nil {
		return err
	}
	_, err = out.Write(doc)
	return err
}

func listIncidents(ctx context.Context, b *book, _ []string, out io.Writer) error {
	if err := b.open(ctx); err != nil {
		return err
	}
	if b.json {
		return writeIndented(out, map[string]any{"incidents": append([]alerts.Entry{}, b.entries...)})
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tLASTED\tSEVERITY\tABANDONED\tWORKER-SECONDS\tWHAT\tTHE LAST FIX")
	for i := range b.entries {
		e := &b.entries[i]
		held := "–"
		if before := e.Earlier(b.entries); before != nil {
			held = string(alerts.Compare(before, e, b.marks).Verdict)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", alerts.Escape(e.ID), e.Lasted(), e.Severity, alerts.NumberOf(e.Numbers.Abandoned),
			alerts.NumberOf(e.Numbers.WorkerSecondsLower)+" to "+alerts.NumberOf(e.Numbers.WorkerSecondsUpper), alerts.Escape(strings.TrimSpace(e.Lead+" "+e.Requests)), held)
	}
	return w.Flush()
}

func showIncident(ctx context.Context, b *book, args []string, out io.Writer) error {
	e, err := b.find(ctx, args[0])
	if err != nil {
		return err
	}
	full := together(*e, b.entries, b.marks)
	if b.json {
		return writeIndented(out, full)
	}
	for _, line := range e.Lines() {
		fmt.Fprintln(out, line)
	}
	for _, m := range full.Annotations {
		fmt.Fprintln(out, alerts.Escape(m.At.String()+" "+m.Text))
	}
	if full.Compared != nil {
		fmt.Fprintln(out, alerts.Escape("\u2192 against "+full.Compared.Earlier))
		writeComparison(out, full.Compared)
	}
	return nil
}

func writeComparison(out io.Writer, c *alerts.Comparison) {
	for _, line := range c.Lines() {
		fmt.Fprintln(out, line)
	}
}

func compareIncidents(ctx context.Context, b *book, args []string, out io.Writer) error {
	a, err := b.find(ctx, args[0])
	if err != nil {
		return err
	}
	later, err := b.find(ctx, args[1])
	if err != nil {
		return err
	}
	slices.SortStableFunc(b.marks, func(x, y alerts.Mark) int { return cmp.Compare(x.At, y.At) })
	c := alerts.Compare(a, later, slices.Compact(b.marks))
	if b.json {
		return writeIndented(out, c)
	}
	fmt.Fprintln(out, alerts.Escape(c.Later+" against "+c.Earlier))
	writeComparison(out, &c)
	return nil
}

// newAnnotateCommand makes `squall annotate`: what was done, and when.
func newAnnotateCommand() *cobra.Command {
	var o daemonFlags
	var site, at string
	cmd := &cobra.Command{
		Use:   "annotate TEXT",
		Short: "note what was done: it stands on timelines, and between the incidents that are compared",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m := alerts.Mark{Text: args[0], Site: site, At: alerts.Instant(time.Now().UnixNano())}
			if at != "" {
				if err := m.At.UnmarshalText([]byte(at)); err != nil {
					return usageError(fmt.Errorf("--at: %w", err))
				}
			}
			m, err := m.Clean()
			if err != nil {
				return usageError(err)
			}
			c, err := o.configured()
			if err != nil {
				return err
			}
			daemon, err := o.client(c)
			if err != nil {
				return err
			}
			body, err := json.Marshal(m)
			if err == nil {
				_, err = daemon.call(cmd.Context(), http.MethodPost, "/api/v1/annotations", body)
			}
			if err != nil {
				return fmt.Errorf("annotate: %w", err)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&site, "site", "", "`NAME` of the site that it is about (default all)")
	f.StringVar(&at, "at", "", "`TIME` of it, RFC 3339 (default now)")
	o.add(f)
	return cmd
}
