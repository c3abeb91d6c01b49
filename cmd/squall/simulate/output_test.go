package simulate

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// check looks at one line's fields and gives its time in ms, whether its client left, and whether that is
// consistent. Each is written against the format's description, not against the writer.
type check func(t *testing.T, line string) (millis int64, abandoned bool)

const combinedPattern = `^([0-9a-f.:]+) - - \[(\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d [-+]\d{4})\] "(GET|HEAD|POST) (/\S*) (HTTP/1\.1|HTTP/2\.0)" (\d{3}) (\d+) "([^"]+)" "([^"]+)"`

var (
	combinedLine = regexp.MustCompile(combinedPattern + `$`)
	ingressLine  = regexp.MustCompile(combinedPattern + ` (\d+) (\d+\.\d{3}) \[(web-shop-example-80)\] \[\] (\S+) (\S+) (\S+) (\S+) ([0-9a-f]{32})$`)
	albLine      = regexp.MustCompile(`^(h2|https) (\S+Z) (app/\S+) (\S+):(\d+) (\S+) (-1|\d+\.\d{3}) (-1|\d+\.\d{3}) (-1|\d+\.\d{3}) (\d{3}) (\d{3}|-) (\d+) (\d+) ` +
		`"(\w+) https://([^:/"]+):443(/\S*) HTTP/(?:1\.1|2\.0)" "([^"]+)" (\S+) (TLSv1\.3) (\S+) "(Root=1-[0-9a-f]{8}-[0-9a-f]{24})" "([^"]+)" "([^"]+)" (\d+) (\S+Z) ` +
		`"(forward|waf)" "-" "-" "([^"]+)" "(\d{3}|-)" "-" "-" (TID_[0-9a-f]{32})$`)
)

func fields(t *testing.T, re *regexp.Regexp, line string) []string {
	t.Helper()
	f := re.FindStringSubmatch(line)
	if f == nil {
		t.Fatalf("unexpected line %s", line)
	}
	return f
}

func localTime(t *testing.T, s string) int64 {
	t.Helper()
	at, err := time.Parse("02/Jan/2006:15:04:05 -0700", s)
	if err != nil {
		t.Fatal(err)
	}
	return at.UnixMilli()
}

var checks = map[string]check{
	"nginx": func(t *testing.T, line string) (int64, bool) {
		f := fields(t, combinedLine, line)
		return localTime(t, f[2]), f[6] == "499" && f[7] == "0"
	},
	"nginx_extended": func(t *testing.T, line string) (int64, bool) {
		f := fields(t, logged, line)
		at, left := millis(t, f[6], f[7]), f[4] == "499"
		switch {
		case f[13] == "-" && (f[11] != "-" || f[12] != "-" || f[14] != "-"),
			f[13] != "-" && f[13] != f[9]+"."+f[10],
			left && (f[12] != "-" || f[13] == "-" || f[5] != "0" || f[14] != "0"),
			!left && f[12] != "-" && f[12] != f[4]:
			t.Fatalf("fields contradict each other: %s", line)
		}
		return at, left
	},
	"ingress_nginx": func(t *testing.T, line string) (int64, bool) {
		f := fields(t, ingressLine, line)
		left := f[6] == "499"
		switch {
		case left && (f[16] != "-" || f[15] != f[11] || f[14] != "0"),
			!left && f[13] != "-" && (f[16] != f[6] || f[15] != f[11] || f[14] != f[7]),
			f[13] == "-" && (f[14] != "-" || f[15] != "-" || f[16] != "-"):
			t.Fatalf("fields contradict each other: %s", line)
		}
		return localTime(t, f[2]), left
	},
	"alb": func(t *testing.T, line string) (int64, bool) {
		f := fields(t, albLine, line)
		end, err1 := time.Parse("2006-01-02T15:04:05.000000Z", f[2])
		created, err2 := time.Parse("2006-01-02T15:04:05.000000Z", f[25])
		if err1 != nil || err2 != nil || end.Before(created) {
			t.Fatalf("times %v %v: %s", err1, err2, line)
		}
		left := f[10] == "460"
		sum := 0.0
		for _, s := range f[7:10] {
			v, err := strconv.ParseFloat(s, 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += v
		}
		wall := end.Sub(created).Seconds()
		switch {
		case left && (f[11] != "-" || f[8] != "-1" || f[9] != "-1" || f[13] != "0"),
			!left && (f[11] != f[10] || sum > wall+0.001 || sum < wall-0.002),
			f[6] != f[27], f[11] != f[28], f[15] != f[22]:
			t.Fatalf("fields contradict each other: %s", line)
		}
		return end.UnixMilli(), left
	},
	"cloudfront_tsv": func(t *testing.T, line string) (int64, bool) {
		f := strings.Split(line, "\t")
		if len(f) != 33 {
			t.Fatalf("%d fields: %s", len(f), line)
		}
		at, err := time.Parse(time.DateTime, f[0]+" "+f[1])
		left := f[8] == "000"
		switch took := seconds(t, f[18]); {
		case err != nil, took < 0, f[15] != "shop.example", strings.Contains(f[10], " "), f[13] != f[22],
			left != (f[28] == "ClientHungUpRequest"), left && f[13] != "Error", f[13] == "Hit":
			t.Fatalf("fields contradict each other: %v %s", err, line)
		}
		return at.UnixMilli(), left
	},
	"haproxy_http": func(t *testing.T, line string) (int64, bool) {
		f := fields(t, haproxyLine, line)
		at, err := time.Parse("02/Jan/2006:15:04:05.000", f[3])
		left := f[9] == "CH--"
		switch {
		case err != nil, left != (f[7] == "-1"), left != (f[4] == "be_app/app1" && f[5] == "-1"), f[5] != "-1" && f[5] != f[6],
			(f[4] == "fe_https/<NOSRV>") != (f[9] == "LR--"), left && f[8] != "0":
			t.Fatalf("fields contradict each other: %v %s", err, line)
		}
		return at.UnixMilli() + int64(seconds(t, f[6])), left // the time is when it began, the line's place its end
	},
	"traefik_json": func(t *testing.T, line string) (int64, bool) {
		m := members(t, line)
		began, err := time.Parse(time.RFC3339Nano, m["StartUTC"].(string))
		status, origin := m["DownstreamStatus"].(float64), m["OriginStatus"]
		if err != nil || m["RequestHost"] != "shop.example" || origin != nil && origin != status || (origin == nil) != (m["ServiceAddr"] == nil) {
			t.Fatalf("fields contradict each other: %v %s", err, line)
		}
		return began.Add(time.Duration(m["Duration"].(float64))).UnixMilli(), status == 499
	},
	"envoy_json": func(t *testing.T, line string) (int64, bool) {
		m := members(t, line)
		began, err := time.Parse(time.RFC3339Nano, m["start_time"].(string))
		left := m["response_flags"] == "DC"
		if err != nil || left != (m["response_code"] == 0.0) || left != (m["response_code_details"] == "downstream_remote_disconnect") ||
			(m["upstream_host"] == nil) != (m["response_code_details"] == "direct_response") {
			t.Fatalf("fields contradict each other: %v %s", err, line)
		}
		return began.UnixMilli() + int64(m["duration"].(float64)) + 1, left
	},
	"caddy_json": func(t *testing.T, line string) (int64, bool) {
		m := members(t, line)
		request, _ := m["request"].(map[string]any)
		left := m["status"] == 0.0
		if request["host"] != "shop.example" || request["method"] == nil || left && m["size"] != 0.0 {
			t.Fatalf("fields contradict each other: %s", line)
		}
		return int64(m["ts"].(float64) * 1000), left
	},
}

var haproxyLine = regexp.MustCompile(`^([0-9a-f.:]+):(\d+) \[(\S+)\] fe_https~ (be_app/app1|fe_https/<NOSRV>) 0/-?[01]/-?[01]/(-?(?:\d+))/(\d+) (-?\d+) (\d+) - - (----|CH--|LR--) ` +
	`9/9/8/8/0 0/0 \{shop\.example\|[^|}]+\} "(?:GET|HEAD|POST) /\S* HTTP/(?:1\.1|2\.0)"$`)

// members decodes a line of JSON.
func members(t *testing.T, line string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(line), &m); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	return m
}

func seconds(t *testing.T, s string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestLinesParse: every line of a storm fits its format, the lines are in order of their own time, and those of
// clients that left are as many as the truth says.
func TestLinesParse(t *testing.T) {
	for _, format := range Formats() {
		var log bytes.Buffer
		truth := simulate(t, Options{Scenario: named(t, "S02"), Format: format, Seed: 2, Rate: 0.2, Pool: 5}, &log)
		last, left, lines := int64(0), 0, 0
		for line := range strings.Lines(log.String()) {
			if line[0] == '#' {
				continue
			}
			at, abandoned := checks[format](t, strings.TrimSuffix(line, "\n"))
			if at < last-2 { // begin and duration are cut to a millisecond each
				t.Fatalf("%s: out of order: %s", format, line)
			}
			if last = at; abandoned {
				left++
			}
			lines++
		}
		if left != truth.Sites[0].Abandoned || lines != truth.Lines {
			t.Errorf("%s: %d of %d left, the truth says %d of %d", format, left, lines, truth.Sites[0].Abandoned, truth.Lines)
		}
	}
}

// TestNodesSplitTheLog: the lines of all nodes, sorted, are those of one.
func TestNodesSplitTheLog(t *testing.T) {
	o := Options{Scenario: named(t, "S02"), Format: "alb", Seed: 6}
	var whole bytes.Buffer
	simulate(t, o, &whole)
	parts := make([]bytes.Buffer, 8)
	var writers []io.Writer
	for i := range parts {
		writers = append(writers, &parts[i])
	}
	if _, err := RunNodes(t.Context(), o, writers); err != nil {
		t.Fatal(err)
	}
	var got []string
	for i := range parts {
		lines := strings.SplitAfter(parts[i].String(), "\n")
		near(t, "lines of a node", float64(len(lines)), float64(bytes.Count(whole.Bytes(), []byte("\n")))/8, 250)
		got = append(got, lines[:len(lines)-1]...)
	}
	want := strings.SplitAfter(whole.String(), "\n")
	want = want[:len(want)-1]
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%d lines over the nodes, %d in one log", len(got), len(want))
	}
}

type file struct {
	bytes.Buffer
	closed bool
}

func (f *file) Close() error { f.closed = true; return nil }

// TestALBFiles: together they are the log, each holds its five minutes, and each is closed.
func TestALBFiles(t *testing.T) {
	o := Options{Scenario: named(t, "S02"), Seed: 6, Rate: 0.2, Pool: 5}
	files := map[string]*file{}
	truth, err := RunALBFiles(t.Context(), o, 2, func(key string) (io.WriteCloser, error) {
		if files[key] != nil {
			t.Errorf("%s is opened twice", key)
		}
		files[key] = &file{}
		return files[key], nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 6 {
		t.Errorf("%d files of 15 minutes and 2 nodes", len(files))
	}
	name := regexp.MustCompile(`^AWSLogs/\d{12}/elasticloadbalancing/eu-west-1/2026/06/04/\d{12}_elasticloadbalancing_eu-west-1_app\.[^_]+_(\d{8}T\d{4}Z)_10\.0\.1\.[12]_[0-9a-f]{8}\.log\.gz$`)
	lines := 0
	for key, f := range files {
		end, err := time.Parse("20060102T1504Z", fields(t, name, key)[1])
		if err != nil || !f.closed {
			t.Fatalf("%s: %v, closed %t", key, err, f.closed)
		}
		zip, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(zip)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(content)) {
			lines++
			at, _ := checks["alb"](t, strings.TrimSuffix(line, "\n"))
			if before := end.Sub(time.UnixMilli(at)); before <= 0 || before > 5*time.Minute {
				t.Fatalf("in a file that ends %s: %s", end, line)
			}
		}
	}
	if lines != truth.Lines {
		t.Errorf("%d lines in files, the truth says %d", lines, truth.Lines)
	}
}

// liveLog notes how far each write is from the time of its last line.
type liveLog struct {
	t           *testing.T
	began       time.Time
	history     int
	early, late time.Duration
	lines       int
}

func (l *liveLog) Write(b []byte) (int, error) {
	last := bytes.TrimSuffix(b, []byte("\n"))
	last = last[bytes.LastIndexByte(last, '\n')+1:]
	f := logged.FindSubmatch(last)
	if f == nil {
		return len(b), nil // cut at the buffer's end
	}
	at, now := time.UnixMilli(millis(l.t, string(f[6]), string(f[7]))), time.Now()
	l.lines += bytes.Count(b, []byte("\n"))
	if now.Equal(l.began) {
		l.history += bytes.Count(b, []byte("\n"))
		return len(b), nil
	}
	l.late, l.early = max(l.late, now.Sub(at)), max(l.early, at.Sub(now))
	return len(b), nil
}

// TestLivePace: what lies before the start of the process is written at once, the rest when its time comes.
func TestLivePace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sleep := func(ctx context.Context, d time.Duration) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(d):
				return nil
			}
		}
		log := &liveLog{t: t, began: time.Now()}
		o := Options{Scenario: named(t, "demo"), Start: time.Now().Add(-10 * minute), Pace: LivePace(time.Now, sleep)}
		truth := simulate(t, o, log)
		if log.history < 1500 || log.history > 4000 {
			t.Errorf("%d lines of history", log.history)
		}
		if log.early > 20*time.Millisecond || log.late > 40*time.Millisecond {
			t.Errorf("lines were written up to %s before and %s after their time", log.early, log.late)
		}
		if lines := truth.Lines; log.lines < lines*9/10 {
			t.Errorf("%d of %d lines seen", log.lines, lines)
		}
		if took := time.Since(log.began); took > 10*minute || took < 10*minute-5*time.Second {
			t.Errorf("10 minutes took %s", took)
		}

		ctx, cancel := context.WithTimeout(t.Context(), minute)
		defer cancel()
		if _, err := Run(ctx, Options{Scenario: named(t, "demo"), Start: time.Now(), Pace: o.Pace}, io.Discard); err == nil {
			t.Error("a run outlived its context")
		}
	})
}
