package format

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// maxMisses is after how many lines in a row that the chosen format missed and another read the other is chosen.
const maxMisses = 3

// A Rejection is why a format did not fit the last line that it was tried on.
type Rejection struct {
	Format string          `json:"format"`
	Reason pipeline.Reason `json:"reason"`
	Column int             `json:"column"` // the byte at which the line stopped fitting, from 0
}

// Auto finds a stream's format. It tries the formats in the order of their specificity and stays with the one
// that fits. A line which that one misses is tried with all again, so that no line is lost while a stream
// changes; after a run of such lines the choice follows. It buffers nothing.
type Auto struct {
	candidates []candidate
	chosen     int // -1: none yet
	misses     int
}

type candidate struct {
	name   string
	order  int
	format pipeline.Format
	tried  bool
	why    Rejection
	missed bool // the line at hand, for the reason now
	now    Rejection
	passed bool // it understood a line that is neither a request nor an event
}

// NewAuto makes the format that New makes for "auto".
func NewAuto(cfg Config) (*Auto, error) {
	a := &Auto{chosen: -1}
	for name, k := range kinds {
		if k.auto == 0 {
			continue
		}
		cfg.Name = name
		f, err := k.new(cfg)
		if err != nil {
			return nil, fmt.Errorf("auto: %w", err)
		}
		a.candidates = append(a.candidates, candidate{name: name, order: k.auto, format: f})
	}
	slices.SortFunc(a.candidates, func(x, y candidate) int {
		return cmp.Or(cmp.Compare(x.order, y.order), cmp.Compare(x.name, y.name))
	})
	return a, nil
}

// Choice gives the name of the chosen format, "" when none fitted yet, and why the others that were tried did
// not fit, in the order of trying.
func (a *Auto) Choice() (name string, why []Rejection) {
	if a.chosen >= 0 {
		name = a.candidates[a.chosen].name
	}
	for i := range a.candidates {
		if c := &a.candidates[i]; i != a.chosen && c.tried {
			why = append(why, c.why)
		}
	}
	return name, why
}

// Understood lists the formats that understood lines without finding a request or an event in them, in the order of
// trying.
func (a *Auto) Understood() (names []string) {
	for i := range a.candidates {
		if c := &a.candidates[i]; c.passed {
			names = append(names, c.name)
		}
	}
	return names
}

// Parse reads the line with the chosen format, or with the first that fits.
func (a *Auto) Parse(line []byte, item *pipeline.Item) {
	nearest := Rejection{Reason: pipeline.ReasonNoFormat}
	if a.chosen >= 0 {
		c := &a.candidates[a.chosen]
		c.format.Parse(line, item)
		if item.Kind != pipeline.Failed {
			a.misses = 0
			return
		}
		// The stream's own format knows best what is wrong with a line that nothing reads.
		nearest = Rejection{Format: c.name, Reason: item.Reason, Column: item.Column}
		c.why = nearest
		if item.Reason == pipeline.ReasonEmpty {
			return
		}
	}
	if a.search(line, item, &nearest) {
		return
	}
	again(item)
	fail(item, nearest.Reason, nearest.Column)
}

// search tries every format but the chosen one. One that understands the line without finding anything in it
// (Ignored) is content with it, and not chosen for that.
func (a *Auto) search(line []byte, item *pipeline.Item, nearest *Rejection) bool {
	ignored := false
	for i := range a.candidates {
		c := &a.candidates[i]
		if c.missed = false; i == a.chosen {
			continue
		}
		again(item)
		c.format.Parse(line, item)
		switch item.Kind {
		case pipeline.IsRecord, pipeline.IsEvents:
			a.refused(i)
			a.follow(i)
			return true
		case pipeline.Ignored:
			ignored, c.passed = true, true
			continue
		}
		c.missed, c.now = true, Rejection{Format: c.name, Reason: item.Reason, Column: item.Column}
		if item.Reason == pipeline.ReasonEmpty {
			nearest.Reason, nearest.Column = item.Reason, item.Column
			a.refused(i + 1)
			return false
		}
		if a.chosen < 0 && item.Column > nearest.Column {
			nearest.Column = item.Column
		}
	}
	if ignored {
		again(item)
		item.Kind = pipeline.Ignored
	} else {
		a.refused(len(a.candidates))
	}
	return ignored
}

// refused keeps why the first n formats did not read the line at hand. What another format understands is no reason
// against them.
func (a *Auto) refused(n int) {
	for i := range a.candidates[:n] {
		if c := &a.candidates[i]; c.missed {
			c.tried, c.why = true, c.now
		}
	}
}

// follow chooses format i at once when there is no choice yet, else after a run of misses.
func (a *Auto) follow(i int) {
	if a.chosen < 0 {
		a.chosen = i
		return
	}
	if a.misses++; a.misses >= maxMisses {
		a.candidates[a.chosen].tried = true
		a.chosen, a.misses = i, 0
	}
}

// Fitting lists the formats that read a line as a request or an event: those that auto tries, in the order of trying,
// then the others by name. Each is tried alone, with its defaults.
func Fitting(cfg Config, line []byte) (names []string) {
	if cfg.Zone == nil {
		cfg.Zone = time.UTC
	}
	cfg.LogFormat, cfg.Fields = "", nil
	order := slices.SortedFunc(maps.Keys(kinds), func(x, y string) int {
		return cmp.Or(cmp.Compare(place(x), place(y)), cmp.Compare(x, y))
	})
	var item pipeline.Item
	for _, name := range order {
		cfg.Name = name
		f, err := kinds[name].new(cfg)
		if err != nil {
			continue // it needs settings
		}
		item.Reset()
		if f.Parse(line, &item); item.Kind == pipeline.IsRecord || item.Kind == pipeline.IsEvents {
			names = append(names, name)
		}
	}
	return names
}

// place is a kind's place in the order of trying; what auto does not try comes last.
func place(name string) int {
	if k := kinds[name]; k.auto > 0 {
		return k.auto
	}
	return math.MaxInt
}
