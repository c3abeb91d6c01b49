package format

import (
	"strconv"
	"testing"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

func TestSyslogFramer(t *testing.T) {
	at := func(s string) int64 {
		v, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			t.Fatal(err)
		}
		return v.UnixNano()
	}
	received := at("2026-03-29T00:26:25.000001Z")
	const front = "@1774743985000001 "
	for _, c := range []struct {
		line, message string
		time          int64
		reason        pipeline.Reason
	}{
		// RFC 5424, with and without structured data, as rsyslog and HAProxy (log … format rfc5424) send it
		{front + "<134>1 2026-03-29T00:26:24.310841+01:00 lb-1 haproxy 2480 - - 192.0.2.1:1 [x] fe", "192.0.2.1:1 [x] fe", at("2026-03-28T23:26:24.310841Z"), ""},
		{front + `<134>1 2026-03-29T00:26:24Z lb-1 nginx - - [a@1 k="v]\" "][b@2] ` + "\xef\xbb\xbf" + `GET /`, "GET /", at("2026-03-29T00:26:24Z"), ""},
		{front + "<134>1 - - - - - - GET /", "GET /", received, ""},
		{front + "<134>1 2026-03-29T00:26:24Z h a p m -", "", 0, pipeline.ReasonEmpty},
		{front + "<134>1 2026-03-29T00:26:24Z h a p m [open", "", 0, pipeline.ReasonEmpty},
		// RFC 3164: the year is that of the receipt
		{front + "<134>Mar 29 00:26:24 lb-1 nginx: 192.0.2.1 - - [x]", "192.0.2.1 - - [x]", at("2026-03-29T00:26:24Z"), ""},
		{front + "<134>Mar 29 00:26:24 haproxy[2480]: 192.0.2.1:1 [x]", "192.0.2.1:1 [x]", at("2026-03-29T00:26:24Z"), ""},
		{front + "<134>Mar  9 00:26:24 lb-1 nginx: a: b", "a: b", at("2026-03-09T00:26:24Z"), ""},
		{front + "<134>Mar 29 00:26:24.250 lb-1 nginx: x", "x", at("2026-03-29T00:26:24.25Z"), ""},
		{front + "<134>Mar 29 00:26:24 fe80::1 - - [x]", "fe80::1 - - [x]", at("2026-03-29T00:26:24Z"), ""},
		{front + "<134>2026-03-29T00:26:24.5+00:00 lb-1 php-fpm[7]: WARNING: [pool www] x", "WARNING: [pool www] x", at("2026-03-29T00:26:24.5Z"), ""},
		{front + "<134>nginx: x", "x", received, ""},
		{front + "<134>GET /", "GET /", received, ""},
		// without a priority, and without all else
		{"Mar 29 00:26:24 lb-1 nginx: x", "x", 0, ""},
		{"2026-03-29T00:26:24Z lb-1 nginx[3]: x", "x", at("2026-03-29T00:26:24Z"), ""},
		{"2026-03-29T00:26:24Z 192.0.2.1:1 [x]", "192.0.2.1:1 [x]", at("2026-03-29T00:26:24Z"), ""},
		{front + "WARNING: [pool www] x", "WARNING: [pool www] x", received, ""},
		{"@home nginx", "@home nginx", 0, ""},
		{front + "<999999>x", "<999999>x", received, ""},
		{front + "<134>", "", 0, pipeline.ReasonEmpty},
		{front + "<134>1 ", "1 ", received, ""},
		{"<", "<", 0, ""},
		{"", "", 0, pipeline.ReasonEmpty},
	} {
		got, _, time, reason := mustFramer(t, "syslog").Next([]byte(c.line), 0)
		if string(got) != c.message || reason != c.reason || time != c.time {
			t.Errorf("%s: %q %d %q, want %q %d", c.line, got, time, reason, c.message, c.time)
		}
	}
}

func TestSyslogZoneAndNewYear(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	f, err := NewFramerIn("syslog", berlin)
	if err != nil {
		t.Fatal(err)
	}
	received := time.Date(2027, 1, 1, 0, 0, 1, 0, berlin)
	line := "@" + strconv.FormatInt(received.UnixMicro(), 10) + " <134>Dec 31 23:59:59 lb-1 nginx: x"
	want := time.Date(2026, 12, 31, 23, 59, 59, 0, berlin).UnixNano()
	if _, _, got, _ := f.Next([]byte(line), 0); got != want {
		t.Errorf("%s, want %s", time.Unix(0, got).In(berlin), time.Unix(0, want).In(berlin))
	}
}

func TestSyslogFramerAllocatesNothing(t *testing.T) {
	f := mustFramer(t, "syslog")
	line := []byte("@1774743985000001 <134>Mar 29 00:26:24 lb-1 haproxy[2480]: 192.0.2.1:1 [x]")
	if n := testing.AllocsPerRun(100, func() { f.Next(line, 0) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
