package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/squall-sre/squall/alerts"
)

// Bounds of the streams of the live page.
const (
	maxStreams   = 32 // at once: more are told to come again
	streamEvery  = time.Second
	streamBeat   = 10 * time.Second // without news, so that both sides see that the other is there
	streamWrite  = 10 * time.Second // a client that takes longer for one message is dropped
	streamReturn = 5 * time.Second  // after which a browser comes again
)

// A broadcast renders the page's parts for all streams: once in a while, however many look.
type broadcast struct {
	slots   chan struct{}
	stopped chan struct{}
	once    sync.Once

	mu     sync.Mutex
	at     time.Time
	latest *rendering
}

// A rendering is what the page shows at one moment.
type rendering struct {
	now    string
	firing int
	parts  map[string]string // by pageParts
	series []byte
}

func newBroadcast() *broadcast {
	return &broadcast{slots: make(chan struct{}, maxStreams), stopped: make(chan struct{})}
}

// stop ends all streams.
func (b *broadcast) stop() { b.once.Do(func() { close(b.stopped) }) }

// render gives a rendering that is not older than streamEvery.
func (c *webServerConfig) render() (*rendering, error) {
	b := c.broadcast
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.latest != nil && time.Since(b.at) < streamEvery {
		return b.latest, nil
	}
	live := c.State.Live()
	data := c.data(live)
	r := &rendering{now: data.Now, parts: map[string]string{}}
	list := make([]alerts.Alert, len(data.Alerts))
	for i := range data.Alerts {
		list[i] = data.Alerts[i].Alert
	}
	for _, n := range firingOf(list) {
		r.firing += n
	}
	for _, name := range pageParts {
		var text bytes.Buffer
		if err := pageTemplate.ExecuteTemplate(&text, name, data); err != nil {
			return nil, err
		}
		r.parts[name] = text.String()
	}
	var err error
	if r.series, err = charted(live, list, c.State.Marks()); err != nil {
		return nil, err
	}
	b.latest, b.at = r, time.Now()
	return r, nil
}

// stream sends what the page shows as server-sent events, each part when it has changed.
func (c webServerConfig) stream(w http.ResponseWriter, r *http.Request) {
	select {
	case c.broadcast.slots <- struct{}{}:
		defer func() { <-c.broadcast.slots }()
	default:
		w.Header().Set("Retry-After", fmt.Sprint(int(streamReturn.Seconds())))
		say(w, http.StatusServiceUnavailable, "too many look at the live page: the page itself is there")
		return
	}
	control := http.NewResponseController(w)
	if err := control.SetReadDeadline(time.Time{}); err != nil { // nothing more is read, and it is no sign that nothing comes
		say(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("X-Accel-Buffering", "no") // of nginx in front
	send := func(text []byte) bool {
		if control.SetWriteDeadline(time.Now().Add(streamWrite)) != nil {
			return false
		}
		_, err := w.Write(text)
		return err == nil && control.Flush() == nil
	}
	if !send(fmt.Appendf(nil, "retry: %d\n\n", streamReturn.Milliseconds())) {
		return
	}
	sent := &rendering{}
	last := time.Now()
	tick := time.NewTicker(streamEvery)
	defer tick.Stop()
	for {
		now, err := c.render()
		if err != nil {
			return // whoever asks for the page is told
		}
		text := now.since(sent)
		if len(text) == 0 && time.Since(last) >= streamBeat {
			text = fmt.Appendf(nil, "event: beat\ndata: %s\n\n", now.now)
		}
		if len(text) > 0 {
			if !send(text) {
				return
			}
			last = time.Now()
		}
		sent = now
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		case <-c.broadcast.stopped:
			return
		}
	}
}

// since gives the events for what has changed.
func (r *rendering) since(sent *rendering) (text []byte) {
	news := struct {
		Now    string            `json:"now"`
		Firing int               `json:"firing"`
		HTML   map[string]string `json:"html"`
	}{r.now, r.firing, map[string]string{}}
	for name, part := range r.parts {
		if sent.parts[name] != part {
			news.HTML[name] = part
		}
	}
	if len(news.HTML) > 0 {
		line, err := json.Marshal(news) // without line ends, as an event's data must be
		if err != nil {
			return nil
		}
		text = fmt.Appendf(text, "event: parts\ndata: %s\n\n", line)
	}
	if !bytes.Equal(sent.series, r.series) {
		text = fmt.Appendf(text, "event: series\ndata: %s\n\n", r.series)
	}
	return text
}
