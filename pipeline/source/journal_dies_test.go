package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/squall-sre/squall/pipeline"
)

// A ledger keeps the entries of journals as the spool would, and checks that their places ascend.
type ledger struct {
	t *testing.T

	mu       sync.Mutex
	at       map[string]int64
	nodes    map[string]string
	messages map[string][]string // by path
	longest  int
	skips    []pipeline.Skip
}

func newLedger(t *testing.T) *ledger {
	return &ledger{t: t, at: map[string]int64{}, nodes: map[string]string{}, messages: map[string][]string{}}
}

func (l *ledger) emit(b *pipeline.Block) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, ok := l.at[b.Stream.ID]; ok && b.From != at || b.To < b.From {
		l.t.Errorf("%s: a block from %d to %d, the last ended at %d", b.Stream.ID, b.From, b.To, at)
	}
	if len(b.Data) > blockSize || len(b.Data) > 0 && b.Data[len(b.Data)-1] != '\n' {
		l.t.Errorf("a block of %d bytes", len(b.Data))
	}
	l.at[b.Stream.ID], l.nodes[b.Stream.ID] = b.To, b.Stream.Node
	l.skips = append(l.skips, b.Skips...)
	for line := range strings.Lines(string(b.Data)) {
		l.longest = max(l.longest, len(line))
		var e struct {
			Message any    `json:"MESSAGE"`
			Time    string `json:"__REALTIME_TIMESTAMP"`
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Time == "" {
			l.t.Errorf("%.200q: %v", line, err)
		}
		l.messages[b.Stream.Path] = append(l.messages[b.Stream.Path], fmt.Sprint(e.Message))
	}
	return nil
}

// Position implements pipeline.Positions.
func (l *ledger) Position(id string) (int64, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.at[id]
	return at, ok
}

// Ended implements pipeline.Positions.
func (l *ledger) Ended(string) bool { return false }

// Anchor implements pipeline.Positions.
func (l *ledger) Anchor(string) pipeline.Anchor { return 0 }

// Stored implements pipeline.Positions.
func (l *ledger) Stored(string) time.Time { return time.Time{} }

// Streams implements pipeline.Positions.
func (l *ledger) Streams(string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ids []string
	for id := range l.at {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (l *ledger) of(unit string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.messages[journalPath(unit)])
}

func (l *ledger) want(unit string, messages []string) {
	l.t.Helper()
	until(l.t, func() bool { return len(l.of(unit)) >= len(messages) }, func() string {
		return fmt.Sprintf("%d of %d entries of %s", len(l.of(unit)), len(messages), unit)
	})
	if got := l.of(unit); !slices.Equal(got, messages) {
		l.t.Fatalf("%s: %d entries, want %d: %.300q", unit, len(got), len(messages), got)
	}
}

const testSeries = "a89308498b2d42489d711c29f4162bd8"

// entry is an object as journalctl writes it.
func entry(number int, message string) string {
	text, _ := json.Marshal(message)
	return entryOf(testSeries, number, string(text))
}

func entryOf(series string, number int, message string) string {
	return fmt.Sprintf(`{"_BOOT_ID":"b","MESSAGE":%s,"__CURSOR":"s=%s;i=%x;b=b;m=1;t=%x;x=1","_HOSTNAME":"node-1","__REALTIME_TIMESTAMP":"%d"}`,
		message, series, number, 1774743984000000+number/3, 1774743984000000+number/3)
}

// A fakeJournal is a directory with the stand-in and its entries.
type fakeJournal struct {
	t   *testing.T
	dir string
}

func newFakeJournal(t *testing.T) *fakeJournal {
	f := &fakeJournal{t: t, dir: t.TempDir()}
	script, err := os.ReadFile("testdata/journalctl")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.dir, "journalctl"), script, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(f.dir, "entries"), "")
	return f
}

func (f *fakeJournal) add(number int, line string) {
	f.t.Helper()
	appendTo(f.t, filepath.Join(f.dir, "entries"), fmt.Sprintf("%d %s\n", number, line))
}

// numbered adds entries n..m-1 and gives their messages.
func (f *fakeJournal) numbered(n, m int) (messages []string) {
	f.t.Helper()
	var all strings.Builder
	for i := n; i < m; i++ {
		message := fmt.Sprintf("message %d", i)
		fmt.Fprintf(&all, "%d %s\n", i, entry(i, message))
		messages = append(messages, message)
	}
	appendTo(f.t, filepath.Join(f.dir, "entries"), all.String())
	return messages
}

func (f *fakeJournal) put(name, text string) { write(f.t, filepath.Join(f.dir, name), text) }

func (f *fakeJournal) drop(name string) {
	f.t.Helper()
	if err := os.Remove(filepath.Join(f.dir, name)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fakeJournal) source(rt Runtime, more string) *journal {
	f.t.Helper()
	return journalSource(f.t, rt, "journalctl: "+filepath.Join(f.dir, "journalctl")+more)
}

func journalSource(t *testing.T, rt Runtime, more string) *journal {
	t.Helper()
	src, err := New(strict("{type: journal, units: [kubelet], "+more+"}"), rt)
	if err != nil {
		t.Fatal(err)
	}
	return src.(*journal)
}

func runJournal(t *testing.T, j Source, l *ledger) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- j.Run(ctx, l, l.emit) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			began := time.Now()
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
			if took := time.Since(began); took > time.Second {
				t.Errorf("stopped after %s", took)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// journalctl is killed again and again, with entries of one microsecond on both sides: none is lost, none comes twice.
func TestJournalctlDies(t *testing.T) {
	f, l := newFakeJournal(t), newLedger(t)
	f.put("die", "7")
	want := f.numbered(1, 40)
	j := f.source(testRuntime(), "")
	stop := runJournal(t, j, l)
	l.want("kubelet", want)
	stop()
	want = append(want, f.numbered(40, 50)...)
	stop = runJournal(t, f.source(testRuntime(), ""), l)
	l.want("kubelet", want)
	want = append(want, f.numbered(50, 60)...)
	l.want("kubelet", want)
	stop()
	if n := testutil.ToFloat64(j.meter.all.errors.WithLabelValues("test", errRead)); n < 5 {
		t.Errorf("%v errors counted", n)
	}
	for id, node := range l.nodes {
		if node != "node-1" {
			t.Errorf("%s is of %q", id, node)
		}
	}
}

// A journal that may not be read is a state, told once, and tried on.
func TestJournalIsForbidden(t *testing.T) {
	for name, text := range map[string]string{
		"refuse": "No journal files were opened due to insufficient permissions.\n",
		"hint":   "Hint: You are currently not seeing messages from other users and the system.\n      Users in groups 'adm', 'systemd-journal' can see all messages.\n",
	} {
		f, l := newFakeJournal(t), newLedger(t)
		f.put(name, text)
		core, logged := observer.New(zap.InfoLevel)
		rt := testRuntime()
		rt.Logger = zap.New(core)
		j := f.source(rt, "")
		runJournal(t, j, l)
		calls := func() int {
			text, _ := os.ReadFile(filepath.Join(f.dir, "calls"))
			return strings.Count(string(text), "\n")
		}
		until(t, func() bool { return calls() >= 3 }, func() string { return fmt.Sprintf("%s: %d calls", name, calls()) })
		state := j.States()[0]
		if state.State != "unreadable" || !strings.HasSuffix(state.Err, "add the user to the group systemd-journal") || state.Path != "journal:kubelet" {
			t.Errorf("%s: %+v", name, state)
		}
		if n := logged.FilterMessage("journal is not readable, trying on").Len(); n != 1 {
			t.Errorf("%s: told %d times", name, n)
		}
		f.drop(name)
		want := f.numbered(1, 5)
		l.want("kubelet", want)
		until(t, func() bool { return j.States()[0].State == "idle" }, func() string { return fmt.Sprint(j.States()) })
		if n := logged.FilterMessage("journal is readable again").Len(); n != 1 {
			t.Errorf("%s: told %d times that it is over", name, n)
		}
	}
}

func TestNoJournalctl(t *testing.T) {
	l := newLedger(t)
	j := journalSource(t, testRuntime(), "journalctl: /nonexistent/journalctl")
	stop := runJournal(t, j, l)
	until(t, func() bool { s := j.States(); return len(s) == 1 && s[0].State == "unreadable" }, func() string { return fmt.Sprint(j.States()) })
	if s := j.States()[0]; !strings.Contains(s.Err, "no such file") {
		t.Errorf("%+v", s)
	}
	stop()
}

// Whatever journalctl writes: what has no place is counted and passed over, what is long is cut and stays an object.
func TestJournalGarbageAndHugeEntries(t *testing.T) {
	f, l := newFakeJournal(t), newLedger(t)
	want := f.numbered(1, 3)
	for i, garbage := range []string{
		"-- Reboot --", "{}", "{", `{"MESSAGE":"x"}`, `{"__CURSOR":"s=1;i=2;t=3"}`, `{"__CURSOR":"i=5;t=5"}`, "\x00\xff",
		`{"MESSAGE":"\"__CURSOR\":\"s=` + testSeries + `;i=ffff;t=1\""}`,
		`{"__CURSOR":"s=` + testSeries + `;i=ffffffffffffffff;t=1"}`,
		strings.Repeat("x", 300<<10),
	} {
		f.add(10+i, garbage)
	}
	f.add(30, entryOf(testSeries, 30, `"`+strings.Repeat(`\u00e4\"é`, 30<<10)+`"`))
	f.add(31, entryOf(testSeries, 31, `[`+strings.Repeat(`255,`, 70<<10)+`1]`))
	f.add(32, strings.Replace(entryOf(testSeries, 32, `"short"`), `"b"`, `"`+strings.Repeat("b", 300<<10)+`"`, 1))
	want = append(want, "?", "?", "<nil>")
	want = append(want, f.numbered(40, 43)...)
	j := f.source(testRuntime(), "")
	stop := runJournal(t, j, l)
	until(t, func() bool { return len(l.of("kubelet")) >= len(want) }, func() string { return fmt.Sprint(len(l.of("kubelet"))) })
	stop()
	got := l.of("kubelet")
	for i := range want {
		if i < len(got) && want[i] != "?" && got[i] != want[i] {
			t.Errorf("entry %d is %.80q, want %q", i, got[i], want[i])
		}
	}
	if cut := got[2]; len(cut) < 50<<10 || strings.TrimRight(cut, `ä"é`) != "" {
		t.Errorf("%d bytes of a long message: %.60q", len(cut), cut)
	}
	if list := got[3]; strings.Count(list, "255") < 60000 {
		t.Errorf("%d bytes of a long list", len(list))
	}
	if l.longest > pipeline.MaxLine || len(l.skips) != 3 {
		t.Errorf("a line of %d bytes, skips %v", l.longest, l.skips)
	}
	if n := testutil.ToFloat64(j.meter.all.errors.WithLabelValues("test", errEntry)); n != 10 {
		t.Errorf("%v lines of garbage counted", n)
	}
}

// A child that does not end by itself, and whose own child keeps the pipe open, does not hold the end of Run.
func TestJournalctlHangs(t *testing.T) {
	f, l := newFakeJournal(t), newLedger(t)
	f.put("deaf", "")
	stop := runJournal(t, f.source(testRuntime(), ""), l)
	until(t, func() bool { _, err := os.Stat(filepath.Join(f.dir, "calls")); return err == nil }, func() string { return "no call" })
	stop()
}

// The error of emit ends Run, and is what it returns.
func TestJournalRoadEnds(t *testing.T) {
	f := newFakeJournal(t)
	f.numbered(1, 5)
	broken := errors.New("the road has ended")
	err := f.source(testRuntime(), "").Run(t.Context(), newLedger(t), func(*pipeline.Block) error { return broken })
	if !errors.Is(err, broken) {
		t.Error(err)
	}
}

func TestJournalConfig(t *testing.T) {
	for config, wrong := range map[string]string{
		"units: [kubelet, 'php*-fpm'], from: end": "",
		"units: []":                                 "units is missing",
		"units: ['']":                               "not a unit's name",
		"units: ['a b']":                            "not a unit's name",
		"units: [a, a]":                             "twice",
		"units: [a], from: now":                     "use start or end",
		"units: [a], directory: journal":            "absolute",
		"units: [a], journalctl: ''":                "journalctl is empty",
		"units: [a], cursor: x":                     "cursor",
		"units: [" + strings.Repeat("a", 300) + "]": "not a unit's name",
	} {
		_, err := New(strict("{type: journal, "+config+"}"), testRuntime())
		if wrong == "" && err != nil || wrong != "" && (err == nil || !strings.Contains(err.Error(), wrong)) {
			t.Errorf("%.60s: %v", config, err)
		}
	}
}
