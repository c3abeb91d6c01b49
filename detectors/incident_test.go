package detectors

import "testing"

// TestIncidentBeginsWithItsFirstOnset: what is noticed second may have begun first, and its totals hold all of it.
func TestIncidentBeginsWithItsFirstOnset(t *testing.T) {
	changes, _ := stage{length: 1200, flows: []flow{
		{from: 0, to: 1200, perMinute: 240},
		{from: 600, to: 900, perMinute: 330, edit: head("/checkout/{int}", 250)}, // over 300 a minute after 60 s
		{from: 630, to: 720, perMinute: 120, edit: gaveUp(10)},                   // over 20 a minute after 10 s
	}}.play(t)
	began := map[string]int64{}
	for _, c := range changes {
		if c.Active {
			began[c.Detector] = c.Since
		}
		if c.Detector != "head_storm" || c.Active {
			continue
		}
		if began["client_abandon"] == 0 || began["client_abandon"] >= began["head_storm"] {
			t.Fatalf("the clients gave up from %d and the storm was seen from %d", began["client_abandon"], began["head_storm"])
		}
		if onset := (c.Onset - base) / second; onset != 600 || c.Evidence.Requests.Get() != 5*330 {
			t.Errorf("the storm began at second %d and had %s requests", onset, c.Evidence.Requests)
		}
		return
	}
	t.Fatalf("no storm was seen from beginning to end: %+v", changes)
}
