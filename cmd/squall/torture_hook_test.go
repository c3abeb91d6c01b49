package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"
)

// A hook is where squall's own webhooks arrive. It notes when, and under which idempotency key.
type hook struct {
	*httptest.Server
	mu  sync.Mutex
	got []hooked
}

// hooked is one alert of a message.
type hooked struct {
	at               time.Time
	path, key        string
	name, status     string
	labels           string
	startsAt, endsAt time.Time
}

func startHook(t *testing.T) *hook {
	h := &hook{}
	h.Server = httptest.NewServer(h)
	t.Cleanup(h.Close)
	return h
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var n notification
	if err := json.NewDecoder(r.Body).Decode(&n); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	h.mu.Lock()
	for _, a := range n.Alerts {
		labels, err := json.Marshal(a.Labels) // its keys come sorted
		if err != nil {
			panic(err) // a map of texts
		}
		h.got = append(h.got, hooked{
			time.Now(), r.URL.Path, r.Header.Get("Idempotency-Key"), a.Labels["alertname"], a.Status, string(labels),
			a.StartsAt.UTC(), a.EndsAt.UTC(),
		})
	}
	h.mu.Unlock()
}

// told gives what came at a path.
func (h *hook) told(path string) []hooked {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(h.got), func(g hooked) bool { return g.path != path })
}
