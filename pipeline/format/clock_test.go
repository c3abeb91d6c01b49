package format

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestClocksAgreeWithTime compares the clocks with the standard library, and with themselves when their cache
// is warm.
func TestClocksAgreeWithTime(t *testing.T) {
	var clf clfClock
	var iso isoClock
	rapid.Check(t, func(t *rapid.T) {
		offset := rapid.IntRange(-12*60, 14*60).Draw(t, "offset") * 60
		zone := time.FixedZone("", offset)
		at := time.Unix(rapid.Int64Range(2*86400, 4e9).Draw(t, "second"), rapid.Int64Range(0, 999_999).Draw(t, "us")*1e3).In(zone)
		for range 2 {
			if got, ok := clf.parse([]byte(at.Format("02/Jan/2006:15:04:05 -0700"))); !ok || got != at.Unix()*1e9 {
				t.Fatalf("clf: %d, want %d", got, at.Unix()*1e9)
			}
			if got, ok := iso.parse([]byte(at.Format(time.RFC3339Nano))); !ok || got != at.UnixNano() {
				t.Fatalf("iso: %d, want %d", got, at.UnixNano())
			}
		}
	})
}

func TestClockRefuses(t *testing.T) {
	var iso isoClock
	for _, bad := range []string{
		"", "2026", "2026-02-29T00:00:00Z", "2026-13-01T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01T00:60:00Z",
		"2026-01-01T00:00:00.Z", "2026-01-01T00:00:00+1", "2026-01-01T00:00:00X", "2026/01/01T00:00:00Z", "9999-01-01T00:00:00Z",
	} {
		if got, ok := iso.parse([]byte(bad)); ok {
			t.Errorf("%q gave %d", bad, got)
		}
	}
}

func TestYearComesFromTheNeighbour(t *testing.T) {
	at := func(ns int64) string { return time.Unix(0, ns).UTC().Format("2006-01-02 15:04") }
	c := yearless{zone: time.UTC}
	if got := c.resolve(3, 29, 0, 0, 0, 0); got != 0 {
		t.Errorf("a year out of nothing: %s", at(got))
	}
	c.know(time.Date(2026, 1, 1, 0, 0, 1, 0, time.UTC).UnixNano())
	for _, want := range []string{"2025-12-31 23:59", "2026-01-01 00:00", "2026-06-30 12:00", "2026-10-01 00:00", "2026-12-31 23:00", "2027-01-01 01:00"} {
		var y, mo, d, h, mi int
		if _, err := fmt.Sscanf(want, "%d-%d-%d %d:%d", &y, &mo, &d, &h, &mi); err != nil {
			t.Fatal(err)
		}
		if got := at(c.resolve(mo, d, h, mi, 0, 0)); got != want {
			t.Errorf("%s became %s", want, got)
		}
	}
	c = yearless{zone: time.FixedZone("", 3600), year: 2026}
	if got := at(c.resolve(3, 29, 0, 30, 0, 0)); got != "2026-03-28 23:30" {
		t.Errorf("the zone is not used: %s", got)
	}
}
