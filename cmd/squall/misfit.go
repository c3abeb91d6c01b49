package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/format"
)

// misfit tells of a file in which auto has found no format so far how near one came, "" when it has or saw nothing. line
// is one that no format read, nil when none is at hand.
func misfit(path string, f pipeline.Format, line []byte) string {
	auto, ok := f.(*format.Auto)
	if !ok {
		return ""
	}
	if text := nearness(auto, line); text != "" {
		return path + ": " + text
	}
	return ""
}

// nearness is misfit without the path.
func nearness(auto *format.Auto, line []byte) string {
	name, not := auto.Choice()
	not = slices.DeleteFunc(not, func(r format.Rejection) bool { return r.Reason == pipeline.ReasonEmpty })
	if name != "" {
		return ""
	}
	if names := auto.Understood(); len(names) > 0 {
		knows := "knows"
		if len(names) > 1 {
			knows = "know"
		}
		return fmt.Sprintf("no request and no event so far; %s %s what its lines are, and they tell of none", strings.Join(names, ", "), knows)
	}
	if len(not) == 0 {
		return ""
	}
	if fitting := fittingNames(line, nil); fitting != "" {
		return fmt.Sprintf("no format fits by its looks alone; %s (name it by --format)", fitting)
	}
	nearest := slices.MaxFunc(not, nearer)
	if nearest.Column == 0 {
		return "no format fits, not even the beginning of a line (--format or --log-format can tell what it is)"
	}
	var names []string
	for _, r := range not {
		if nearer(r, nearest) == 0 {
			names = append(names, r.Format)
		}
	}
	return fmt.Sprintf("no format fits; the nearest: %s, up to column %d (--format or --log-format can tell what it is)",
		strings.Join(names[:min(len(names), mostNamed)], ", "), nearest.Column+1)
}

// mostNamed is how many formats a text names.
const mostNamed = 4

// nearer orders rejections: what knew the line and found a fault in it is nearer than what did not, then what read more
// of it.
func nearer(a, b format.Rejection) int {
	known := func(r format.Rejection) int {
		if r.Reason == pipeline.ReasonNotAccess {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(known(a), known(b)), cmp.Compare(a.Column, b.Column))
}

// fittingNames tells which formats read a line: "nginx, nginx_combined fit"; "" when none does.
func fittingNames(line []byte, zone *time.Location) string {
	if len(line) == 0 {
		return ""
	}
	names := format.Fitting(format.Config{Zone: zone}, line)
	switch len(names) {
	case 0:
		return ""
	case 1:
		return names[0] + " fits"
	}
	return strings.Join(names[:min(len(names), mostNamed)], ", ") + " fit"
}

// nearestTo tells what reads a line that its stream's format did not: a format, or how near one comes.
func nearestTo(line []byte, zone *time.Location) string {
	if fitting := fittingNames(line, zone); fitting != "" {
		return fitting
	}
	auto, err := format.NewAuto(format.Config{Zone: zone})
	if err != nil {
		return ""
	}
	var item pipeline.Item
	item.Reset()
	auto.Parse(line, &item)
	return nearness(auto, nil)
}

// failedLine gives the first of the items' lines that no format took, nil when each was taken.
func failedLine(items []pipeline.Item) []byte {
	for i := range items {
		if it := &items[i]; it.Kind == pipeline.Failed && it.Reason != pipeline.ReasonEmpty {
			return it.Line
		}
	}
	return nil
}
