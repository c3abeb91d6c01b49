package fleet

import (
	"errors"
	"testing"
	"time"
)

// A Probe tells each thing that may be wrong, and leaves nothing on the stream.
func TestProbe(t *testing.T) {
	t.Parallel()
	aggPublic, aggSeed := newNKey(t)
	onePublic, oneSeed := newNKey(t)
	_, strangerSeed := newNKey(t)
	srv := serve(t, func(c *ServerConfig) { c.Users = []User{{NKey: aggPublic}, {NKey: onePublic, Node: "lb1"}} })
	cfg := Config{URL: "nats://" + srv.Addr(), Cluster: cluster, Node: "lb1", NKey: oneSeed}
	probe := func(change func(*Config)) (server, heard string, err error) {
		c := cfg
		change(&c)
		return Probe(t.Context(), c, 100*time.Millisecond)
	}
	for what, x := range map[string]struct {
		change func(*Config)
		want   error
	}{
		"no stream":        {func(*Config) {}, ErrNoStream},
		"a stranger's key": {func(c *Config) { c.NKey = strangerSeed }, ErrStranger},
		"no key":           {func(c *Config) { c.NKey = "" }, ErrStranger},
		"another's name":   {func(c *Config) { c.Node = "lb2" }, ErrRights},
		"another cluster":  {func(c *Config) { c.Cluster = "street" }, ErrRights},
	} {
		if _, _, err := probe(x.change); !errors.Is(err, x.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, _, err := probe(func(c *Config) { c.URL = "nats://" + freeAddresses(t, 1)[0] }); err == nil {
		t.Error("nobody listens there")
	}
	agg := connect(t, srv.Addr(), "agg", func(c *Config) { c.NKey = aggSeed })
	agg.declare(StreamConfig{MaxAge: time.Hour})
	if server, heard, err := probe(func(*Config) {}); err != nil || heard != "" || server != "nats://"+srv.Addr() {
		t.Error(server, heard, err)
	}
	done := make(chan struct{})
	told := make(chan struct{})
	go func() {
		defer close(told)
		for ticker := time.NewTicker(5 * time.Millisecond); ; <-ticker.C {
			_ = agg.Tell([]byte("{}"))
			select {
			case <-done:
				return
			default:
			}
		}
	}()
	_, heard, err := Probe(t.Context(), cfg, time.Minute)
	close(done)
	<-told
	if err != nil || heard != "agg" {
		t.Error(heard, err)
	}
	if last, err := agg.Last(t.Context()); err != nil || last != 0 {
		t.Errorf("%d messages are left: %v", last, err)
	}
}
