package main

import (
	"fmt"
	"os"
	"sync"
	"text/tabwriter"
	"time"
)

// tortureScale is how hard the torture tests are: the short ones run with all tests, the long ones under the build
// tag torture. They are the same tests.
type tortureScale struct {
	kills int           // of kill -9 in a run
	storm time.Duration // of lines of which no two have a path, an agent or an address in common
	pane  string        // of the mob's

	damages int           // of a spool's files
	behind  time.Duration // the most that a page may come later than the twin's; the race detector makes both slow
}

// A tortureRow is what one torture has to show. -1: it does not apply.
type tortureRow struct {
	name                          string
	lines, lost, duplicates, page int
	rss                           int           // MiB, the most
	delay                         time.Duration // from the onset of a storm, in event time, to its page; or behind a twin's
}

// tortureTable is printed when all tests are done.
var tortureTable tortureRows

type tortureRows struct {
	mu   sync.Mutex
	rows []tortureRow
}

func (r *tortureRows) add(row tortureRow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows = append(r.rows, row)
}

func (r *tortureRows) print() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.rows) == 0 || torture.kills < 50 {
		return
	}
	cell := func(n int) string {
		if n < 0 {
			return "-"
		}
		return fmt.Sprint(n)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "torture\tlines\tlost\tduplicates\tpages\tmax RSS MiB\tdetection delay\t")
	for _, row := range r.rows {
		delay := "-"
		if row.delay >= 0 {
			delay = row.delay.Round(time.Millisecond).String()
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", row.name, cell(row.lines), cell(row.lost), cell(row.duplicates),
			cell(row.page), cell(row.rss), delay)
	}
	_ = w.Flush() // standard output has gone: nobody is to be told
}
