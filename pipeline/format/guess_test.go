package format

import (
	"testing"

	"github.com/squall-sre/squall/pipeline"
)

// TestAutoRefusesWhatItWouldGuessWrongly holds lines that fit a format by chance: no field may swallow others.
func TestAutoRefusesWhatItWouldGuessWrongly(t *testing.T) {
	const combined = `203.0.113.9 - - [30/Nov/2026:08:00:00 +0000] "GET / HTTP/1.1" 200 612 "-" "curl/8"`
	for _, line := range []string{
		combined + ` "-" "0.005" "0.004" "www.example.com"`,
		combined + ` "198.51.100.7" "www.example.com"`,
		`198.51.100.7, ` + combined,
	} {
		f, err := NewAuto(Config{})
		if err != nil {
			t.Fatal(err)
		}
		var item pipeline.Item
		item.Reset()
		f.Parse([]byte(line), &item)
		if item.Kind != pipeline.IsRecord {
			continue // it asks for the log_format
		}
		r := &item.Record
		if string(r.UserAgent) != "curl/8" || len(r.Host) > 0 && string(r.Host) != "www.example.com" {
			t.Errorf("%s\nagent %q, host %q", line, r.UserAgent, r.Host)
		}
	}
}

// TestFrontDoorCountsSeconds: it writes hostName as the gateway for containers does, whose unit is ms.
func TestFrontDoorCountsSeconds(t *testing.T) {
	f, err := New(Config{Name: "azure_appgw_json"})
	if err != nil {
		t.Fatal(err)
	}
	for taken, want := range map[string]int64{"0.6": 6e8, "30": 30e9} {
		var item pipeline.Item
		item.Reset()
		f.Parse([]byte(`{"time":"2026-03-29T00:26:24Z","category":"FrontDoorAccessLog","properties":{"httpMethod":"GET","requestUri":"https://shop.example:443/","httpStatusCode":"0","hostName":"shop.example","clientIp":"203.0.113.9","timeTaken":"`+taken+`","errorInfo":"ClientDisconnected"}}`), &item)
		if r := &item.Record; item.Kind != pipeline.IsRecord || r.RequestTime != want || r.Abandoned != pipeline.Yes {
			t.Errorf("%s: %d ns, abandoned %d, %s", taken, r.RequestTime, r.Abandoned, item.Reason)
		}
	}
}

// TestCloudFrontsHeaderIsDecisive: the fields are the user's choice, and none of CloudFront's own need be among them.
func TestCloudFrontsHeaderIsDecisive(t *testing.T) {
	f, err := NewAuto(Config{})
	if err != nil {
		t.Fatal(err)
	}
	var item pipeline.Item
	for _, line := range []string{
		"#Version: 1.0", "#Fields: date time c-ip sc-status cs-method cs-uri-stem time-taken x-host-header",
		"2026-03-29\t00:26:24\t203.0.113.9\t200\tGET\t/a\t0.107\twww.example.com",
	} {
		item.Reset()
		f.Parse([]byte(line), &item)
	}
	if r := &item.Record; item.Kind != pipeline.IsRecord || r.Status != 200 || string(r.Path) != "/a" || r.RequestTime != 107e6 || string(r.Host) != "www.example.com" {
		t.Errorf("%d %s: %d %s %d %s", item.Kind, item.Reason, r.Status, r.Path, r.RequestTime, r.Host)
	}
}
