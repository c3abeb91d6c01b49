package main

import (
	"strings"
	"testing"
)

// TestCheckInWords holds what people are told of a configuration that loads.
func TestCheckInWords(t *testing.T) {
	c, err := LoadValid("../../deploy/squall.example.yaml", nil, families())
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(c.inWords(), "\n")
	for _, want := range []string{
		"reads balancer: file /var/log/nginx/*access*.log, format auto; lines up to 5s late are detected",
		"knows the site shop.example (shop.example, www.shop.example) with 25 workers", "pages for ClientsGivingUp, StormHurting",
		"keeps lines in /var/lib/squall, for 72h and 2048 MiB at most, and ships none", "pages nobody",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	for config, want := range map[string]string{
		"fleet: {embedded: true, node: a-0, server: {listen: '0.0.0.0:4222'}}":         "reads no log: it is for squall aggregate, which judges the fleet default as a-0",
		"sources: [{type: stdin}]\nfleet: {nats: 'nats://u:secret@x:4222', node: n-1}": "is n-1 of the fleet default",
	} {
		c, err := parse(t, nil, config)
		if err != nil {
			t.Fatal(err)
		}
		if text := strings.Join(c.inWords(), "\n"); !strings.Contains(text, want) || strings.Contains(text, "secret") {
			t.Errorf("%s: %s", config, text)
		}
	}
	c, err = parse(t, nil, "sources: [{type: stdin}]\nloki: {url: 'http://u:topsecret@loki/x'}\nnotify: [{type: webhook, url: 'http://hook/topsecret'}]")
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(c.inWords(), "\n"); strings.Contains(text, "topsecret") || !strings.Contains(text, "ships lines to loki") {
		t.Errorf("%s", text)
	}
}
