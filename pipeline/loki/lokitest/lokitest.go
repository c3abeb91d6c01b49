// Package lokitest is a Loki for tests: it takes pushes of snappy-compressed protobuf, and refuses what Loki 3.7.6
// refuses with the same statuses and sentences, stores the rest of a push as Loki does, and folds equal lines at
// one time. What a sender must not do although Loki bears it is listed by Violations.
package lokitest

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang/snappy"
	"github.com/grafana/loki/pkg/push"
)

// Limits are the server's; NewServer begins with Loki's defaults.
type Limits struct {
	MaxAge, MaxAhead, MaxBehind time.Duration // of a line against the clock, and against its stream's newest
	MaxLine                     int           // bytes
	MaxLabels                   int
	MaxName, MaxValue           int // bytes of a label
	MaxMetadata                 int
	MaxMetadataBytes            int
	Burst                       int // bytes of a push; more is refused for ever
	MaxStreams                  int
	MaxBody                     int // bytes of a request as a proxy in front takes them: 413
	NoMetadata                  bool
	StreamPush                  int // bytes of one stream in a push beyond which a repeat is counted twice
}

// Defaults are Loki's default limits.
func Defaults() Limits {
	return Limits{
		MaxAge: 7 * 24 * time.Hour, MaxAhead: 10 * time.Minute, MaxBehind: time.Hour, MaxLine: 256 << 10, MaxLabels: 15,
		MaxName: 1024, MaxValue: 2048, MaxMetadata: 128, MaxMetadataBytes: 64 << 10, Burst: 6 << 20, MaxStreams: 5000,
		MaxBody: 64 << 20, StreamPush: 205_000,
	}
}

// An Entry is a stored line.
type Entry struct {
	Labels   string
	Time     time.Time
	Line     string
	Metadata map[string]string
}

// A Reply overrides what the server would answer; Status 0 does not.
type Reply struct {
	Status int
	Header http.Header
	Text   string
	Store  bool // what is good in the push is stored all the same
}

// A Server is the double. Its fields are set before it is used.
type Server struct {
	URL    string // without path
	Limits Limits
	Now    func() time.Time
	// Intercept may answer in the server's place: n counts the requests from 1.
	Intercept func(n int, r *http.Request, body []byte) Reply
	// Limited tells of which streams the rate is over its limit now.
	Limited func(stream string) bool

	// Version is what /loki/api/v1/status/buildinfo tells; empty: nothing, as a proxy may. Change sets it later.
	Version string

	mu         sync.Mutex
	requests   int
	bodies     [][]byte
	entries    []Entry
	streams    map[string]time.Time // newest
	seen       map[string]struct{}
	folded     int
	violations []string
}

// NewServer starts a server on loopback that the test's end stops.
func NewServer(t testing.TB) *Server {
	s := &Server{Limits: Defaults(), Now: time.Now, streams: map[string]time.Time{}, seen: map[string]struct{}{}}
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	s.URL = h.URL
	return s
}

// Change changes limits and version while the server runs.
func (s *Server) Change(change func(*Server)) { s.mu.Lock(); defer s.mu.Unlock(); change(s) }

// Entries gives what is stored, in the order of storing.
func (s *Server) Entries() []Entry { s.mu.Lock(); defer s.mu.Unlock(); return slices.Clone(s.entries) }

// Requests tells how many pushes came.
func (s *Server) Requests() int { s.mu.Lock(); defer s.mu.Unlock(); return s.requests }

// Bodies gives the bodies of all pushes.
func (s *Server) Bodies() [][]byte { s.mu.Lock(); defer s.mu.Unlock(); return slices.Clone(s.bodies) }

// Folded tells how many lines were dropped because they equalled one at the same time.
func (s *Server) Folded() int { s.mu.Lock(); defer s.mu.Unlock(); return s.folded }

// Violations lists what a careful sender does not do: unordered streams, pushes too large to be recognised again.
func (s *Server) Violations() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.violations)
}

// ServeHTTP answers as Loki does.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/loki/api/v1/status/buildinfo" {
		s.mu.Lock()
		version := s.Version
		s.mu.Unlock()
		if version == "" {
			http.NotFound(w, r)
			return
		}
		_, _ = fmt.Fprintf(w, `{"version":%q,"revision":"","branch":""}`, version)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.requests++
	n := s.requests
	s.bodies = append(s.bodies, body)
	intercept := s.Intercept
	s.mu.Unlock()
	if intercept != nil {
		if reply := intercept(n, r, body); reply.Status != 0 {
			if reply.Store {
				s.take(r, body)
			}
			for name, values := range reply.Header {
				w.Header()[name] = values
			}
			w.WriteHeader(reply.Status)
			_, _ = io.WriteString(w, reply.Text)
			return
		}
	}
	status, text := s.take(r, body)
	if status == http.StatusNoContent {
		w.WriteHeader(status)
		return
	}
	http.Error(w, text, status)
}

func (s *Server) take(r *http.Request, body []byte) (status int, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.URL.Path != "/loki/api/v1/push":
		return http.StatusNotFound, "404 page not found"
	case r.Method != http.MethodPost:
		return http.StatusMethodNotAllowed, ""
	case len(body) > s.Limits.MaxBody:
		return http.StatusRequestEntityTooLarge, "Request Entity Too Large"
	}
	data, err := snappy.Decode(nil, body)
	if err != nil {
		return http.StatusBadRequest, "snappy: corrupt input"
	}
	var p push.PushRequest
	if err := p.Unmarshal(data); err != nil {
		return http.StatusBadRequest, err.Error()
	}
	if len(p.Streams) == 0 {
		return http.StatusUnprocessableEntity, "error at least one valid stream is required for ingestion"
	}
	labels := make([][]label, len(p.Streams))
	for i, st := range p.Streams {
		if labels[i], err = parseLabels(st.Labels); err != nil {
			return http.StatusBadRequest, "couldn't parse labels: " + err.Error()
		}
	}
	return s.store(p.Streams, labels)
}

func (s *Server) store(streams []push.Stream, labels [][]label) (status int, text string) {
	lines, size := 0, 0
	for _, st := range streams {
		for _, e := range st.Entries {
			lines++
			size += len(e.Line) + metadataBytes(e)
			for _, m := range e.StructuredMetadata {
				if strings.Trim(m.Name, "_") == "" {
					return http.StatusInternalServerError, fmt.Sprintf("label name %q normalizes to empty", m.Name)
				}
			}
		}
	}
	if size > s.Limits.Burst {
		return http.StatusTooManyRequests, fmt.Sprintf("ingestion rate limit exceeded for user fake (limit: 4194304 bytes/sec) while attempting to ingest '%d' lines totaling '%d' bytes, reduce log volume or contact your Loki administrator to see if the limit can be increased", lines, size)
	}
	// The distributor checks all streams; what passes goes to the ingester, which stores one stream after the other
	// and answers what became of the last. Only when it has no complaint are those of the distributor told.
	refused := &errorList{}
	status, text = http.StatusNoContent, ""
	for i, st := range streams {
		name := render(labels[i])
		if problem := s.checkLabels(name, labels[i]); problem != "" {
			refused.add(problem)
			continue
		}
		s.inspect(name, st)
		var good []push.Entry
		for _, e := range st.Entries {
			if problem := s.checkEntry(name, e); problem != "" {
				refused.add(problem)
				continue
			}
			good = append(good, e)
		}
		if len(good) > 0 {
			status, text = s.ingest(name, good)
		}
	}
	if status == http.StatusNoContent && refused.total > 0 {
		return http.StatusBadRequest, refused.String()
	}
	return status, text
}

// ingest stores what is not too far behind its stream.
func (s *Server) ingest(name string, entries []push.Entry) (status int, text string) {
	newest, known := s.streams[name]
	if !known && len(s.streams) >= s.Limits.MaxStreams {
		return http.StatusTooManyRequests, fmt.Sprintf("maximum active stream limit exceeded when trying to create stream %s, reduce the number of active streams (reduce labels or reduce label values), or contact your Loki administrator to see if the limit can be increased, user: 'fake'", name)
	}
	if s.Limited != nil && s.Limited(name) {
		return http.StatusTooManyRequests, fmt.Sprintf("entry with timestamp %s ignored, reason: 'Per stream rate limit exceeded (limit: 4KB/sec) while attempting to ingest for stream '%s' totaling 900B, consider splitting a stream via additional labels or contact your Loki administrator to see if the limit can be increased',\nuser 'fake', total ignored: %d out of %d for stream: %s", entries[0].Timestamp.UTC(), name, len(entries), len(entries), name)
	}
	var behind []string
	for _, e := range entries {
		if known && e.Timestamp.Before(newest.Add(-s.Limits.MaxBehind)) {
			behind = append(behind, fmt.Sprintf("entry with timestamp %s ignored, reason: 'entry too far behind, entry timestamp is: %s, oldest acceptable timestamp is: %s',", e.Timestamp.UTC(), stamp(e.Timestamp), stamp(newest.Add(-s.Limits.MaxBehind))))
			continue
		}
		s.keep(name, e)
		if e.Timestamp.After(s.streams[name]) {
			s.streams[name] = e.Timestamp
		}
	}
	if n := len(behind); n > 0 {
		return http.StatusBadRequest, fmt.Sprintf("%s\nuser 'fake', total ignored: %d out of %d for stream: %s", strings.Join(behind[:min(n, 10)], "\n"), n, len(entries), name)
	}
	return http.StatusNoContent, ""
}

func (s *Server) keep(name string, e push.Entry) {
	key := name + strconv.FormatInt(e.Timestamp.UnixNano(), 10) + e.Line
	if _, ok := s.seen[key]; ok {
		s.folded++
		return
	}
	s.seen[key] = struct{}{}
	stored := Entry{Labels: name, Time: e.Timestamp, Line: e.Line, Metadata: map[string]string{}}
	for _, m := range e.StructuredMetadata {
		stored.Metadata[m.Name] = m.Value
	}
	s.entries = append(s.entries, stored)
}

func (s *Server) inspect(name string, st push.Stream) {
	size := 0
	for i, e := range st.Entries {
		size += len(e.Line)
		if i > 0 && e.Timestamp.Before(st.Entries[i-1].Timestamp) {
			s.violations = append(s.violations, "not in ascending order: "+name)
		}
	}
	if size > s.Limits.StreamPush && len(st.Entries) > 1 {
		s.violations = append(s.violations, fmt.Sprintf("%d bytes of one stream in a push: %s", size, name))
	}
}

func (s *Server) checkLabels(name string, labels []label) string {
	if len(labels) > s.Limits.MaxLabels {
		return fmt.Sprintf("entry for stream '%s' has %d label names; limit %d", name, len(labels), s.Limits.MaxLabels)
	}
	for i, l := range labels {
		switch {
		case len(l.name) > s.Limits.MaxName:
			return fmt.Sprintf("stream '%s' has label name too long: '%s'", name, l.name)
		case len(l.value) > s.Limits.MaxValue:
			return fmt.Sprintf("stream '%s' has label value too long: '%s'", name, l.value)
		case i > 0 && l.name == labels[i-1].name:
			return fmt.Sprintf("stream '%s' has duplicate label name: '%s'", name, l.name)
		}
	}
	return ""
}

func (s *Server) checkEntry(name string, e push.Entry) string {
	now, l := s.Now(), s.Limits
	switch n := len(e.StructuredMetadata); {
	case e.Timestamp.Before(now.Add(-l.MaxAge)):
		return fmt.Sprintf("entry for stream '%s' has timestamp too old: %s, oldest acceptable timestamp is: %s", name, stamp(e.Timestamp), stamp(now.Add(-l.MaxAge)))
	case e.Timestamp.After(now.Add(l.MaxAhead)):
		return fmt.Sprintf("entry for stream '%s' has timestamp too new: %s", name, stamp(e.Timestamp))
	case len(e.Line) > l.MaxLine:
		return fmt.Sprintf("max entry size '%d' bytes exceeded for stream '%s' while adding an entry with length '%d' bytes", l.MaxLine, name, len(e.Line))
	case n > 0 && l.NoMetadata:
		return fmt.Sprintf("stream '%s' includes structured metadata, but this feature is disallowed. Please see `limits_config.allow_structured_metadata` or contact your Loki administrator to enable it", name)
	case n > l.MaxMetadata:
		return fmt.Sprintf("stream '%s' has too many structured metadata labels: '%d', limit: '%d'. Please see `limits_config.max_structured_metadata_entries_count` or contact your Loki administrator to increase it", name, n, l.MaxMetadata)
	case metadataBytes(e) > l.MaxMetadataBytes:
		return fmt.Sprintf("stream '%s' has structured metadata too large: '%d' bytes, limit: '%d' bytes. Please see `limits_config.max_structured_metadata_size` or contact your Loki administrator to increase it", name, metadataBytes(e), l.MaxMetadataBytes)
	}
	return ""
}

func metadataBytes(e push.Entry) int {
	n := 0
	for _, m := range e.StructuredMetadata {
		n += len(m.Name) + len(m.Value)
	}
	return n
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// An errorList groups equal sentences as Loki does: N errors like: the sentence.
type errorList struct {
	total  int
	texts  []string
	counts map[string]int
}

func (l *errorList) add(text string) {
	if l.counts == nil {
		l.counts = map[string]int{}
	}
	if l.counts[text] == 0 {
		l.texts = append(l.texts, text)
	}
	l.counts[text]++
	l.total++
}

func (l *errorList) String() string {
	var parts []string
	for _, text := range l.texts {
		if n := l.counts[text]; n > 1 || len(l.texts) > 1 {
			text = fmt.Sprintf("%d errors like: %s", n, text)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

type label struct{ name, value string }

// parseLabels reads {a="b", c="d"} and adds service_name to nothing: sorting is all that the tests need.
func parseLabels(s string) ([]label, error) {
	rest, ok := strings.CutPrefix(s, "{")
	if !ok {
		return nil, fmt.Errorf("1:1: parse error: unexpected %q", s[:min(len(s), 1)])
	}
	var labels []label
	for !strings.HasPrefix(rest, "}") {
		name, after, ok := strings.Cut(rest, "=")
		name = strings.TrimSpace(name)
		for i, c := range []byte(name) {
			letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
			if !letter && (i == 0 || c < '0' || c > '9') {
				return nil, fmt.Errorf("1:%d: parse error: unexpected character inside braces: '%c'", len(s)-len(rest)+i+1, c)
			}
		}
		quoted, err := strconv.QuotedPrefix(after)
		if err != nil || !ok || name == "" {
			return nil, fmt.Errorf("1:%d: parse error: unexpected identifier %q in label set, expected string", len(s)-len(rest)+1, after)
		}
		value, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, fmt.Errorf("1:%d: parse error: invalid syntax", len(s)-len(rest)+1)
		}
		labels = append(labels, label{name, value})
		rest = strings.TrimPrefix(strings.TrimSpace(after[len(quoted):]), ",")
		if rest == "" {
			return nil, fmt.Errorf("1:%d: parse error: unexpected end", len(s))
		}
	}
	slices.SortFunc(labels, func(a, b label) int { return strings.Compare(a.name, b.name) })
	return labels, nil
}

func render(labels []label) string {
	var parts []string
	for _, l := range labels {
		parts = append(parts, l.name+"="+strconv.Quote(l.value))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// Contains tells whether a line of a push contains text.
func Contains(body []byte, text string) bool {
	data, err := snappy.Decode(nil, body)
	if err != nil {
		return false
	}
	var p push.PushRequest
	if p.Unmarshal(data) != nil {
		return false
	}
	for _, st := range p.Streams {
		for _, e := range st.Entries {
			if strings.Contains(e.Line, text) {
				return true
			}
		}
	}
	return false
}

// Only tells whether a push is one line, which contains text.
func Only(body []byte, text string) bool {
	data, err := snappy.Decode(nil, body)
	if err != nil {
		return false
	}
	var p push.PushRequest
	if p.Unmarshal(data) != nil || len(p.Streams) != 1 || len(p.Streams[0].Entries) != 1 {
		return false
	}
	return strings.Contains(p.Streams[0].Entries[0].Line, text)
}
