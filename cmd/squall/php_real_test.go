package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// A page that hangs is told of by four logs: nginx's own two, and php-fpm's error, slow and access log.
func TestRealPHPBehindNginx(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fpm, one, two := freeAddress(t), freeAddress(t), freeAddress(t)
	port := func(address string) string { return strings.TrimPrefix(address, "127.0.0.1:") }
	values := serverValues(t, dir)
	values["FPM"], values["PORT"], values["PORT2"] = fpm, port(one), port(two)
	configure(t, dir, "page.php", values)
	php := []string{phpFPM(t), "-F", "-y", configure(t, dir, "php-fpm.conf", values)}
	if asRoot("R") != "" {
		php = append(php, "-R")
	}
	launchDaemon(t, dir, php, fpm)
	launchDaemon(t, dir, []string{command(t, "nginx"), "-p", dir, "-c", configure(t, dir, "nginx-php.conf", values), "-e", "stderr"}, one, two)

	did := sendAll(t, []visit{
		{name: "/fast?ms=20", from: visitor, request: get, want: "GET /fast?ms=20 shop.example 200 127.0.0.9 external stayed"},
		{name: `/hang?ms=9000&q='"%20(x`, from: visitor, request: get, want: `GET /hang?ms=9000&q='"%20(x shop.example 502 127.0.0.9 external stayed`},
		{name: "/impatient?ms=3500", from: visitor, request: get, want: "GET /impatient?ms=3500 shop.example 504 127.0.0.9 external stayed"},
		{name: "/gone1?ms=700", from: visitor, request: get, leaves: patience, want: "GET /gone1?ms=700 shop.example 499 127.0.0.9 external left"},
		{name: "/gone2?ms=700", from: visitor, over2: true, leaves: patience, want: "GET /gone2?ms=700 shop.example 499 127.0.0.9 external left"},
	}, nil, func(v visit) string {
		if v.over2 {
			return two
		}
		return one
	})
	balancerLog{file: "access.log", choice: auto}.compare(t, dir, did, nil)
	served := map[string]string{`/hang?ms=9000&q='"%20(x`: ""} // a worker that was killed logs nothing
	for _, v := range did.visits[2:] {
		served[v.name] = "GET " + v.name + " shop.example 200 127.0.0.9 external unsaid" // nor does it learn that the client has gone
	}
	served["/fast?ms=20"] = "GET /fast?ms=20 shop.example 200 127.0.0.9 external unsaid"
	access := formatChoice{name: "php_fpm_access", settings: formatSettings{LogFormat: phpAccess}}
	balancerLog{file: "fpm-access.log", choice: access}.compare(t, dir, did, served)

	script := filepath.Join(dir, "page.php")
	hang := fmt.Sprintf("pool shop, script %s, request ", script)
	compareEvents(t, filepath.Join(dir, "error.log"), did, map[string]int{
		"upstream_timeout of 127.0.0.9 at Shop.Example, request GET /impatient?ms=3500 HTTP/1.1": 1,
	})
	compareEvents(t, filepath.Join(dir, "fpm.log"), did, map[string]int{
		"php_slow " + hang + "GET /page.php?ms=3500":              1,
		"php_slow " + hang + `GET /page.php?ms=9000&q='"%20(x`:    1,
		"php_timeout " + hang + `GET /page.php?ms=9000&q='"%20(x`: 1,
		"php_child_exit pool shop, killed by 15":                  1,
	})
	compareEvents(t, filepath.Join(dir, "slow.log"), did, map[string]int{"php_slow " + hang: 2})
}

// phpAccess is an access.format with the request as it was made.
const phpAccess = `%R %{REMOTE_ADDR}e - %u %t "%m %{REQUEST_URI}e" %s %{milli}d %{HTTP_HOST}e`

// phpFPM finds php-fpm, which has its version in its name.
func phpFPM(t *testing.T) string {
	t.Helper()
	for _, pattern := range []string{"/usr/sbin/php-fpm*", "/usr/local/sbin/php-fpm*"} {
		if found, err := filepath.Glob(pattern); err == nil && len(found) > 0 {
			return found[0]
		}
	}
	return command(t, "php-fpm")
}

// compareEvents waits until a log tells of as many events as are wanted, and compares what they say.
func compareEvents(t *testing.T, path string, did doings, want map[string]int) {
	t.Helper()
	total := 0
	for _, n := range want {
		total += n
	}
	got := map[string]int{}
	eventually(t, fmt.Sprintf("%s tells of %d events", path, total), func() bool {
		if size(path) == 0 {
			return false
		}
		clear(got)
		n := 0
		for _, o := range readLog(t, path, auto) {
			if o.failed && o.line != "" {
				t.Errorf("%s: nothing reads %q", path, o.line)
			}
			for _, e := range o.events {
				got[eventText(e)]++
				n++
				if e.Time < did.began.Truncate(time.Second).UnixNano() || e.Time > time.Now().UnixNano() || e.Seconds < 0 || e.Seconds > time.Since(did.began).Seconds()+10 {
					t.Errorf("%s: at %s after %v s: %q", path, time.Unix(0, e.Time), e.Seconds, o.line)
				}
			}
		}
		return n >= total
	})
	if !maps.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", path, got, want)
	}
}

func eventText(e pipeline.Event) string {
	if e.Signal != 0 {
		return fmt.Sprintf("%s pool %s, killed by %d", e.Kind, e.Pool, e.Signal)
	}
	if e.Pool != "" {
		return fmt.Sprintf("%s pool %s, script %s, request %s", e.Kind, e.Pool, e.Script, e.Request)
	}
	return fmt.Sprintf("%s of %s at %s, request %s", e.Kind, e.Client, e.Host, e.Request)
}
