package alerts

import (
	"cmp"
	"errors"
	"slices"
	"strings"
)

// A Mark is something that people did or saw, at a time: a rule that went live, a deploy, an alert of somebody else. It
// stands on timelines, and between two incidents it tells what was changed.
type Mark struct {
	At     Instant `json:"at"`
	Text   string  `json:"text"`
	Site   string  `json:"site,omitempty"`   // "": all
	Source string  `json:"source,omitempty"` // who told of it: annotate, alertmanager
}

// MaxMarks is how many marks are kept, the newest.
const MaxMarks = 1000

// Errors of marks.
var (
	ErrEmptyMark = errors.New("an annotation needs a text")
	ErrMarkTime  = errors.New("an annotation needs a time after 1970")
)

// Clean bounds what a mark says, or tells why it is none.
func (m Mark) Clean() (Mark, error) {
	m.Text, m.Site, m.Source = cut(strings.TrimSpace(m.Text), maxText), cut(m.Site, 253), cut(m.Source, 64)
	switch {
	case m.Text == "":
		return m, ErrEmptyMark
	case m.At <= 0:
		return m, ErrMarkTime
	}
	return m, nil
}

// Concerns tells whether a mark is about one of some sites; about no site in particular it is about all.
func (m *Mark) Concerns(sites []string) bool {
	return m.Site == "" || len(sites) == 0 || slices.Contains(sites, m.Site)
}

// AddMark puts a mark into a list by its time, once, and drops the oldest over MaxMarks.
func AddMark(list []Mark, m Mark) []Mark {
	if slices.Contains(list, m) {
		return list
	}
	list = append(slices.Clone(list), m)
	slices.SortStableFunc(list, func(a, b Mark) int {
		return cmp.Or(cmp.Compare(a.At, b.At), strings.Compare(a.Text, b.Text), strings.Compare(a.Site, b.Site))
	})
	return list[max(0, len(list)-MaxMarks):]
}
