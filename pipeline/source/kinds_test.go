package source

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/squall-sre/squall/pipeline"
)

func strict(text string) func(any) error {
	return func(v any) error { return yaml.UnmarshalWithOptions([]byte(text), v, yaml.Strict()) }
}

func TestNew(t *testing.T) {
	for _, c := range []struct{ config, wrong string }{
		{"{type: file, paths: [/var/log/a.log], format: {type: nginx, log_format: '$status'}, labels: {role: balancer}}", ""},
		{"{type: container}", ""},
		{"{type: stdin, name: pipe, lateness: 1m, timezone: Europe/Berlin}", ""},
		{"{type: file}", "paths is missing"},
		{"{type: file, paths: [log]}", "absolute"},
		{"{type: file, paths: ['/var/[']}", "no glob"},
		{"{type: file, paths: [/a], from: middle}", "use start or end"},
		{"{type: file, paths: [/a], quiet: 1s}", "quiet"},
		{"{type: file, paths: [/a], max_files: 0}", "max_files"},
		{"{type: file, paths: [/a], pathes: [/b]}", "pathes"},
		{"{type: file, paths: [/a], timezone: Mars}", "timezone"},
		{"{type: file, paths: [/a], lateness: -1s}", "negative"},
		{"{type: pigeon}", "container, file"},
		{"{paths: [/a]}", "is not a source"},
	} {
		rt := testRuntime()
		rt.Stdin = strings.NewReader("")
		got, err := New(strict(c.config), rt)
		switch {
		case c.wrong == "" && err != nil:
			t.Errorf("%s: %v", c.config, err)
		case c.wrong == "" && got.Common().Name == "":
			t.Errorf("%s: no name", c.config)
		case c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)):
			t.Errorf("%s: error %v, want one with %q", c.config, err, c.wrong)
		}
	}
}

func TestCommon(t *testing.T) {
	got, err := New(strict("{type: file, paths: [/a], site: shop.example, labels: {role: balancer}}"), testRuntime())
	if err != nil {
		t.Fatal(err)
	}
	want := Common{
		Name: "test", Type: "file", Format: "auto", Site: "shop.example", Lateness: 5 * time.Second,
		Labels: map[string]string{"role": "balancer"},
	}
	if diff := cmp.Diff(want, got.Common()); diff != "" {
		t.Error(diff)
	}
}

func TestPlaceOfContainer(t *testing.T) {
	type place struct {
		Namespace, Pod, Container string
		Restart                   int
	}
	for path, want := range map[string]place{
		"/var/log/pods/shop_web-5d9-x2_0a1b/php/3.log":                                    {"shop", "web-5d9-x2", "php", 3},
		"/var/log/pods/shop_web-5d9-x2_0a1b/php/3.log.20260102-150405":                    {"shop", "web-5d9-x2", "php", 3},
		"/var/log/pods/shop_web-5d9-x2_0a1b/php/3.log.20260102-150405.gz":                 {"shop", "web-5d9-x2", "php", 3},
		"/var/log/containers/web-5d9-x2_shop_php-fpm-" + strings.Repeat("a", 64) + ".log": {"shop", "web-5d9-x2", "php-fpm", 0},
		"/var/log/nginx/access.log":                                                       {},
		"/var/log/pods/a_b/c/0.log":                                                       {},
		"/0.log":                                                                          {},
		"/var/log/containers/x.json":                                                      {},
	} {
		var s pipeline.Stream
		placeContainer(path, &s)
		if got := (place{s.Namespace, s.Pod, s.Container, s.Restart}); got != want {
			t.Errorf("%s: %+v, want %+v", path, got, want)
		}
	}
}

func TestRotatedNames(t *testing.T) {
	for name, stem := range map[string]string{
		"access.log.1": "access.log", "access.log.12.gz": "access.log", "access.log-20260101.gz": "access.log",
		"access.log-20260101-1767225600": "access.log", "access-20260101.log": "access.log",
		"0.log.20260102-150405": "0.log", "0.log.20260102-150405.gz": "0.log", "0.log.20260102-150405.gz.tmp": "0.log",
		"x-json.log.3": "x-json.log", "access.log.zst": "access.log", "access.log.2026-01-01": "access.log",
		"access.1.log": "access.log", "access.12.log.gz": "access.log",
		"access.log": "", "1.log": "", "php8.2-fpm.log": "", "error_log": "", "10.0.0.1-access.log": "",
	} {
		r, ok := parseRotated(name)
		if ok != (stem != "") || ok && r.stem != stem {
			t.Errorf("%s: %+v %v, want the stem %q", name, r, ok, stem)
		}
	}
}

func runStdin(t *testing.T, ctx context.Context, in io.Reader, s *spool, done chan error) *stdin {
	t.Helper()
	rt := testRuntime()
	rt.Stdin = in
	src, err := New(strict("{type: stdin}"), rt)
	if err != nil {
		t.Fatal(err)
	}
	go func() { done <- src.Run(ctx, s, s.emit(ctx)) }()
	return src.(*stdin)
}

// Lines of a pipe come as they are written, and the last one when the writer ends.
func TestStdinPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s, done := newSpool(t), make(chan error, 1)
	src := runStdin(t, t.Context(), r, s, done)
	lines := number(0, 20000)
	for i := 0; i < len(lines); i += 5000 {
		put(t, w, text(lines[i:i+5000]))
		s.want(lines[:i+5000])
	}
	put(t, w, "half")
	w.Close()
	s.want(append(lines, "half"))
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := src.States(); len(got) != 1 || got[0].State != "done" || s.ended() != 1 {
		t.Errorf("states %v", got)
	}
	if n := testutil.ToFloat64(src.meter.lines); n != 20001 {
		t.Errorf("counted %v lines", n)
	}
}

func TestStdinStops(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	pr, pw := io.Pipe()
	defer pw.Close()
	for _, in := range []io.Reader{r, pr} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		runStdin(t, ctx, in, newSpool(t), done)
		began := time.Now()
		cancel()
		if err := <-done; err != nil || time.Since(began) > time.Second {
			t.Errorf("%T: %v after %s", in, err, time.Since(began))
		}
	}
}

// The error of emit ends every kind of source, and is what Run returns.
func TestRoadEnds(t *testing.T) {
	broken := errors.New("the road has ended")
	path := logPath(t)
	write(t, path, text(number(0, 20000)))
	emit := func(*pipeline.Block) error { return broken }
	rt := testRuntime()
	rt.Stdin = strings.NewReader("a\nb\n")
	in, err := New(strict("{type: stdin}"), rt)
	if err != nil {
		t.Fatal(err)
	}
	for _, src := range []Source{newFiles(testConfig(path), testRuntime(), nil), in} {
		if err := src.Run(t.Context(), newSpool(t), emit); !errors.Is(err, broken) {
			t.Errorf("%T: %v", src, err)
		}
	}
}
