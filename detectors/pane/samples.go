package pane

import (
	"slices"
	"strconv"

	"github.com/squall-sre/squall/pipeline"
)

const (
	maxSamples     = 3
	maxSamplePath  = 120 // bytes
	maxSampleAgent = 80  // bytes
)

// Samples keeps three requests as text: those with the smallest hashes, so that neither order nor repetition
// matters. The text is raw: whoever shows it escapes it. The zero value is empty.
type Samples struct {
	kept   []sample // ascending by hash
	merged bool     // some of the texts are another's, too
	later  *later   // what is still to be merged; nil for nothing
}

type sample struct {
	hash uint64
	text []byte
}

// Add keeps r if its hash is among the smallest. Only then text is built.
func (s *Samples) Add(hash uint64, r *pipeline.Record) {
	if len(s.kept) == maxSamples && hash >= s.kept[maxSamples-1].hash {
		return
	}
	at, found := s.find(hash)
	if found {
		return
	}
	n := len(s.kept)
	var room []byte // of a text that is not needed any more
	switch {
	case s.merged:
	case n == maxSamples:
		room = s.kept[n-1].text[:0]
	case n < cap(s.kept):
		room = s.kept[:n+1][n].text[:0]
	}
	s.kept = s.kept[:min(n, maxSamples-1)]
	s.kept = slices.Insert(s.kept, at, sample{hash, appendSample(room, r)})
}

func (s *Samples) find(hash uint64) (at int, found bool) {
	for at = range s.kept {
		if s.kept[at].hash >= hash {
			return at, s.kept[at].hash == hash
		}
	}
	return len(s.kept), false
}

func (s *Samples) keep(at int, x sample) {
	s.kept = slices.Insert(s.kept, at, x)
	s.kept = s.kept[:min(len(s.kept), maxSamples)]
}

// Merge keeps the smallest of both. o stays what it is.
func (s *Samples) Merge(o *Samples) {
	s.settle()
	o.settle()
	s.merged = true
	if len(s.kept) == 0 {
		s.kept = slices.Clone(o.kept)
		return
	}
	for _, x := range o.kept {
		if at, found := s.find(x.hash); !found && at < maxSamples {
			s.keep(at, x)
		}
	}
}

// Strings lists the samples in the order of their hashes.
func (s *Samples) Strings() []string {
	s.settle()
	if len(s.kept) == 0 {
		return nil
	}
	list := make([]string, len(s.kept))
	for i, x := range s.kept {
		list[i] = string(x.text)
	}
	return list
}

// appendSample writes METHOD path?… status seconds "agent", without address and without what the query held.
func appendSample(b []byte, r *pipeline.Record) []byte {
	b = slices.Grow(b, 64+min(len(r.Path), maxSamplePath)+min(len(r.UserAgent), maxSampleAgent))
	if r.Malformed || len(r.Method) == 0 {
		b = append(b, '-')
	} else {
		b = appendCut(b, r.Method, 16)
	}
	b = append(b, ' ')
	b = appendCut(b, r.Path, maxSamplePath)
	if r.Query != nil {
		b = append(b, "?…"...)
	}
	b = append(b, ' ')
	b = strconv.AppendUint(b, uint64(r.Status), 10)
	b = append(b, ' ')
	if r.RequestTime >= 0 {
		b = strconv.AppendFloat(b, float64(r.RequestTime)/1e9, 'f', 3, 64)
		b = append(b, 's')
	} else {
		b = append(b, '-')
	}
	b = append(b, ' ', '"')
	b = appendCut(b, r.UserAgent, maxSampleAgent)
	return append(b, '"')
}

func appendCut(b, text []byte, n int) []byte {
	if len(text) <= n {
		return append(b, text...)
	}
	return append(append(b, text[:n]...), "…"...)
}
