package simulate

import (
	"bytes"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/format"
)

// TestSquallReadsIt: squall's own formats, by name and by themselves, read from each log what the truth tells.
func TestSquallReadsIt(t *testing.T) {
	for _, written := range Formats() {
		var log bytes.Buffer
		o := Options{Scenario: named(t, "S02"), Format: written, Seed: 8, Rate: 0.2, Pool: 5, Zone: time.FixedZone("+0200", 7200)}
		truth := simulate(t, o, &log)
		for _, read := range []string{written, "auto"} {
			f, err := format.New(format.Config{Name: read, Zone: o.Zone})
			if err != nil {
				t.Fatal(err)
			}
			requests, abandoned, reached := map[string]map[int]int{}, 0, 0
			var item pipeline.Item
			for line := range bytes.Lines(log.Bytes()) {
				item.Reset()
				f.Parse(bytes.TrimSuffix(line, []byte("\n")), &item)
				if line[0] == '#' { // a header
					continue
				}
				if item.Kind != pipeline.IsRecord {
					t.Fatalf("%s read as %s: %v %q: %s", written, read, item.Kind, item.Reason, line)
				}
				r := &item.Record
				if r.End < truth.Start.UnixNano() || r.End >= truth.End.UnixNano() || r.Start > r.End {
					t.Fatalf("%s: from %d to %d: %s", written, r.Start, r.End, line)
				}
				by := requests[string(r.Method)]
				if by == nil {
					by = map[int]int{}
					requests[string(r.Method)] = by
				}
				status := int(r.Status)
				if written == "haproxy_http" && r.Abandoned == pipeline.Yes {
					status = -1 // as the line says it
				}
				by[status]++
				if r.Abandoned == pipeline.Yes {
					abandoned++
				}
				if r.Reached == pipeline.Yes {
					reached++
				}
			}
			s := &truth.Sites[0]
			if diff := cmp.Diff(s.Requests, requests); diff != "" || abandoned != s.Abandoned {
				t.Errorf("%s read as %s: %d of %d abandoned; %s", written, read, abandoned, s.Abandoned, diff)
			}
			want := s.AnsweredBy[App] - s.InSystem
			switch written {
			case "alb":
				want += s.AnsweredBy[Nginx] // its targets are the nginx
			case "caddy_json":
				want -= s.Abandoned // its proof is a header of the answer
			}
			// CloudFront does not say it of what ended in an error.
			if written != "nginx" && written != "cloudfront_tsv" && reached != want {
				t.Errorf("%s read as %s: %d reached an upstream, the truth says %d", written, read, reached, want)
			}
		}
	}
}

func TestMethodsAndStatusesAreWritten(t *testing.T) {
	s := simulate(t, Options{Scenario: named(t, "S01"), Format: "alb", Seed: 8, Rate: 0.4, Pool: 10}, &bytes.Buffer{}).Sites[0]
	want := map[string][]int{"GET": {200, 304, 404, 460}, "HEAD": {200, 460}, "POST": {302, 460}}
	for method, statuses := range want {
		got := maps.Clone(s.Requests[method])
		for _, status := range statuses {
			if got[status] == 0 {
				t.Errorf("no %s %d", method, status)
			}
			delete(got, status)
		}
		if len(got) > 0 {
			t.Errorf("%s also answered %v", method, got)
		}
	}
}
