package format

import (
	"fmt"
	"testing"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// In the night when clocks go back, the digits from 02:00 to 03:00 come twice in a log without a zone. Time goes on in
// it all the same, one line after the other, and a request that HAProxy logs late does not end the first pass.
func TestRepeatedHour(t *testing.T) {
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	from := time.Date(2026, 10, 25, 0, 0, 0, 0, time.UTC)
	for name, layout := range map[string]string{
		"haproxy_http": `203.0.113.1:33317 [%[3]s] http-in static/srv1 0/0/0/5/36 200 99 - - ---- 1/1/1/1/0 0/0 "GET /ws HTTP/1.1"`,
		"php_fpm":      `[%[2]s] WARNING: [pool www] server reached pm.max_children setting (5), consider raising it`,
		"nginx_error":  `%[1]s [error] 7#7: *1 limiting requests, excess: 5.0 by zone "a", client: 203.0.113.1, server: a, request: "GET / HTTP/1.1", host: "a"`,
	} {
		parse := func(f pipeline.Format, at time.Time) time.Time {
			at = at.In(zone)
			line := fmt.Sprintf(layout, at.Format("2006/01/02 15:04:05"), at.Format("02-Jan-2006 15:04:05"), at.Format("02/Jan/2006:15:04:05.000"))
			var item pipeline.Item
			item.Reset()
			f.Parse([]byte(line), &item)
			switch item.Kind {
			case pipeline.IsRecord:
				return time.Unix(0, item.Record.Start)
			case pipeline.IsEvents:
				return time.Unix(0, item.Events[0].Time)
			}
			t.Fatalf("%s: %s: %s", name, line, item.Reason)
			return time.Time{}
		}
		open := func(near time.Time) pipeline.Format {
			cfg := Config{Name: name, Zone: zone}
			if !near.IsZero() {
				cfg.Near = near.UnixNano()
			}
			f, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			return f
		}
		f := open(time.Time{})
		for at := from.Add(-time.Hour); at.Before(from.Add(3 * time.Hour)); at = at.Add(17 * time.Second) {
			if got := parse(f, at); !got.Equal(at) {
				t.Fatalf("%s: %s became %s", name, at, got.UTC())
			}
			if at.Minute() == 55 && at.Before(from.Add(time.Hour)) {
				parse(f, at.Add(-25*time.Minute)) // was under way since then
			}
		}
		second := from.Add(70 * time.Minute) // rotated in the second pass
		if got := parse(open(second.Add(time.Second)), second); !got.Equal(second) {
			t.Errorf("%s: a file that begins at %s began at %s", name, second, got.UTC())
		}
	}
}
