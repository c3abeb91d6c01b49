package loki

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/grafana/loki/pkg/push"

	"github.com/squall-sre/squall/pipeline"
)

const (
	maxLabels     = 14   // Loki's max_label_names_per_series is 15, and one is backlogLabel
	maxLabelName  = 256  // bytes; Loki takes 1024
	maxLabelValue = 1024 // bytes; Loki takes 2048
	maxSets       = 1000 // distinct sets of labels; beyond them the site becomes "other"
	maxCached     = 4096 // streams × sites whose set is remembered

	otherSite    = "other"
	backlogLabel = "backlog" // on what was stored during an outage: Loki refuses what is an hour behind its stream
	jobName      = "squall"
)

// labelOf gives the value of a label that a line's stream and site determine.
var labelOf = map[string]func(s *pipeline.Stream, site string) string{
	"job":       func(*pipeline.Stream, string) string { return jobName },
	"site":      func(_ *pipeline.Stream, site string) string { return site },
	"source":    func(s *pipeline.Stream, _ string) string { return s.Input },
	"node":      func(s *pipeline.Stream, _ string) string { return s.Node },
	"namespace": func(s *pipeline.Stream, _ string) string { return s.Namespace },
	"pod":       func(s *pipeline.Stream, _ string) string { return s.Pod },
	"container": func(s *pipeline.Stream, _ string) string { return s.Container },
}

// metadataOf gives the value of a line's structured metadata, "" for none. What is made for it is written into t.
var metadataOf = map[string]func(t *text, s *pipeline.Stream, e *pipeline.Entry) string{
	"method":           func(t *text, _ *pipeline.Stream, e *pipeline.Entry) string { return t.keep(e.Method) },
	"route":            func(_ *text, _ *pipeline.Stream, e *pipeline.Entry) string { return e.Route },
	"status":           status,
	"request_time":     requestTime,
	"client_class":     func(_ *text, _ *pipeline.Stream, e *pipeline.Entry) string { return ofRecord(e, e.Class.String()) },
	"client_abandoned": abandoned,
	"origin":           func(_ *text, _ *pipeline.Stream, e *pipeline.Entry) string { return ofRecord(e, e.Origin.String()) },
	"parse_error":      func(_ *text, _ *pipeline.Stream, e *pipeline.Entry) string { return string(e.Reason) },
	"site":             func(_ *text, _ *pipeline.Stream, e *pipeline.Entry) string { return e.Site },
	"path":             func(_ *text, s *pipeline.Stream, _ *pipeline.Entry) string { return s.Path },
	"node":             func(_ *text, s *pipeline.Stream, _ *pipeline.Entry) string { return s.Node },
	"namespace":        func(_ *text, s *pipeline.Stream, _ *pipeline.Entry) string { return s.Namespace },
	"pod":              func(_ *text, s *pipeline.Stream, _ *pipeline.Entry) string { return s.Pod },
	"container":        func(_ *text, s *pipeline.Stream, _ *pipeline.Entry) string { return s.Container },
}

// ValidLabels lists what labels may name, beside the static labels of sources.
func ValidLabels() []string { return slices.Sorted(maps.Keys(labelOf)) }

// ValidMetadata lists what metadata may name.
func ValidMetadata() []string { return slices.Sorted(maps.Keys(metadataOf)) }

func status(t *text, _ *pipeline.Stream, e *pipeline.Entry) string {
	if e.Status == 0 {
		return ""
	}
	var b [8]byte
	return t.keep(strconv.AppendUint(b[:0], uint64(e.Status), 10))
}

func ofRecord(e *pipeline.Entry, s string) string {
	if e.Kind != pipeline.IsRecord {
		return ""
	}
	return s
}

// requestTime is in seconds, as nginx writes it, with no more digits than needed.
func requestTime(t *text, _ *pipeline.Stream, e *pipeline.Entry) string {
	if e.Kind != pipeline.IsRecord || e.RequestTime < 0 {
		return ""
	}
	var b [32]byte
	out := strconv.AppendInt(b[:0], e.RequestTime/1e9, 10)
	if ns := e.RequestTime % 1e9; ns > 0 {
		whole := len(out)
		out = strconv.AppendInt(out, 1e9+ns, 10) // the 1 keeps the zeros behind it
		out[whole] = '.'
		out = bytes.TrimRight(out, "0")
	}
	return t.keep(out)
}

func abandoned(_ *text, _ *pipeline.Stream, e *pipeline.Entry) string {
	switch e.Abandoned {
	case pipeline.Yes:
		return "true"
	case pipeline.No:
		return "false"
	}
	return ""
}

// A labeler makes Loki's label sets and metadata. It belongs to one goroutine.
type labeler struct {
	labels   []string
	metadata []metadatum // sorted by name
	cache    map[cacheKey]string
	sets     map[string]struct{}
	free     memory
}

type metadatum struct {
	name  string
	value func(t *text, s *pipeline.Stream, e *pipeline.Entry) string
}

type cacheKey struct {
	stream, site string
	backlog      bool
}

func newLabeler(c *Config) *labeler {
	l := &labeler{labels: c.Labels, cache: map[cacheKey]string{}, sets: map[string]struct{}{}}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(c.Metadata))) {
		l.metadata = append(l.metadata, metadatum{name, metadataOf[name]})
	}
	return l
}

// set gives the label set of a line, in Loki's notation.
func (l *labeler) set(s *pipeline.Stream, site string, backlog bool) string {
	key := cacheKey{s.ID, site, backlog}
	if set, ok := l.cache[key]; ok {
		return set
	}
	set := l.bounded(s, site)
	if backlog {
		set = `{` + backlogLabel + `="1", ` + set[1:]
	}
	if len(l.cache) >= maxCached {
		clear(l.cache)
	}
	l.cache[key] = set
	return set
}

// bounded falls back to sets with fewer values, so that hosts or pods that come and go cannot make Loki's streams
// grow for ever.
func (l *labeler) bounded(s *pipeline.Stream, site string) string {
	set := l.render(s, site)
	if l.admit(set, maxSets) {
		return set
	}
	if set = l.render(s, otherSite); l.admit(set, 2*maxSets) {
		return set
	}
	return `{job="` + jobName + `", site="` + otherSite + `"}`
}

func (l *labeler) admit(set string, limit int) bool {
	if _, ok := l.sets[set]; ok {
		return true
	}
	if len(l.sets) >= limit {
		return false
	}
	l.sets[set] = struct{}{}
	return true
}

// render writes the labels that are configured, then the static ones, at most maxLabels, sorted by name.
func (l *labeler) render(s *pipeline.Stream, site string) string {
	set := map[string]string{}
	add := func(name, value string) {
		name, value = labelName(name), labelValue(value)
		if _, ok := set[name]; ok || name == "" || value == "" || len(set) >= maxLabels || name == backlogLabel {
			return
		}
		set[name] = value
	}
	static := slices.Sorted(maps.Keys(s.Labels))
	for _, name := range l.labels {
		// A source may set its own job or node.
		if v, ok := s.Labels[name]; ok {
			add(name, v)
		} else if of, ok := labelOf[name]; ok {
			add(name, of(s, site))
		}
	}
	for _, name := range static {
		add(name, s.Labels[name])
	}
	if len(set) == 0 {
		set["job"] = jobName
	}
	var b strings.Builder
	b.WriteByte('{')
	for i, name := range slices.Sorted(maps.Keys(set)) {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(name)
		b.WriteByte('=')
		b.WriteString(strconv.Quote(set[name]))
	}
	b.WriteByte('}')
	return b.String()
}

// labelName makes s a name that every Loki takes: letters, digits and _, no digit first, no reserved __ first.
func labelName(s string) string {
	b := []byte(s[:min(len(s), maxLabelName)])
	for i, c := range b {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
		if !letter && (c < '0' || c > '9' || i == 0) {
			b[i] = '_'
		}
	}
	name := string(b)
	for strings.HasPrefix(name, "__") {
		name = name[1:]
	}
	// Loki answers 500 for ever to names of underscores alone.
	if strings.Trim(name, "_") == "" {
		return ""
	}
	return name
}

// labelValue makes s valid and short. Escapes that strconv.Quote writes and Loki's parser does not read, such as
// \x00, do not arise: control characters go.
func labelValue(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && !strconv.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	return cut(s, maxLabelValue)
}

// cut shortens s to at most n bytes without cutting a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// pairs gives the metadata of a line.
func (l *labeler) pairs(t *text, s *pipeline.Stream, e *pipeline.Entry) push.LabelsAdapter {
	from := len(t.pairs)
	for i := range l.metadata {
		m := &l.metadata[i]
		v := m.value(t, s, e)
		if v == "" {
			continue
		}
		if !utf8.ValidString(v) {
			v = strings.ToValidUTF8(v, "\uFFFD")
		}
		t.pairs = append(t.pairs, push.LabelAdapter{Name: m.name, Value: cut(v, maxLabelValue)})
	}
	return t.pairs[from:len(t.pairs):len(t.pairs)]
}
