package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// lived is what the live page shows.
type lived struct {
	Title, Status, Alerts, Connection string

	Articles, Charts, Images, Wide int
	Same                           bool // it was not loaded again
}

const lookAtLive = `({
	Title: document.title, Status: document.getElementById("status").textContent, Alerts: document.getElementById("alerts").textContent,
	Connection: document.getElementById("connection").textContent,
	Articles: document.querySelectorAll("#alerts article").length, Charts: document.querySelectorAll("#charts canvas").length,
	Images: document.querySelectorAll("main img, main script, main iframe").length,
	Wide: document.documentElement.scrollWidth - window.innerWidth, Same: window.marked === true})`

// hostileStorm is the first half of a storm, with paths and agents that would take a page over.
func hostileStorm(t *testing.T) (before, storm string) {
	t.Helper()
	text, err := os.ReadFile(hostileLog(t))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(text), "\n")
	first := 0
	for i, line := range lines {
		if strings.Contains(line, `"HEAD `) {
			first = i
			break
		}
	}
	return strings.Join(lines[:first], ""), strings.Join(lines[first:first+(len(lines)-first)/2], "")
}

// shows waits for what the page shows.
func shows(t *testing.T, ctx context.Context, what string, so func(lived) bool) (s lived) {
	t.Helper()
	eventually(t, what, func() bool {
		var err error
		if s, err = chromedp.Run(ctx, chromedp.Evaluate[lived](lookAtLive)); err != nil {
			t.Fatal(err)
		}
		return so(s)
	})
	return s
}

// watching starts a squall that reads a log with this beginning.
func watching(t *testing.T, log, before string) *program {
	t.Helper()
	write(t, log, before)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "squall.yaml"), fmt.Sprintf(`
sources: [{name: balancer, type: file, paths: [%s]}]
site_defaults: {pool: {workers: 25}}
spool: {dir: %s/spool}
`, log, dir))
	return runSquall(t, dir, surroundings{})
}

// noteIsDrawn: what is noted is a line of its own colour in the first chart.
func noteIsDrawn(t *testing.T, ctx context.Context, p *program, before string) {
	t.Helper()
	const blue = `(() => { const c = document.querySelector("#charts canvas"), copy = new OffscreenCanvas(c.width, c.height).getContext("2d", { willReadFrequently: true });
		copy.drawImage(c, 0, 0);
		const d = copy.getImageData(0, 0, c.width, c.height).data;
		let n = 0; for (let i = 0; i < d.length; i += 4) if (d[i] === 11 && d[i+1] === 92 && d[i+2] === 173) n++; return n })()`
	_, msec, _ := strings.Cut(before[len(before)/2:], " msec=")
	seconds, err := strconv.ParseFloat(msec[:strings.IndexByte(msec, ' ')], 64)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(int64(seconds), 0).UTC().Format(time.RFC3339)
	if _, told, err := execute(t.Context(), strings.NewReader(""), "annotate", hostile, "--at", at, "--url", p.base); err != nil {
		t.Fatalf("%v %s", err, told)
	}
	eventually(t, "the note is on the chart", func() bool {
		n, err := chromedp.Run(ctx, chromedp.Evaluate[int](blue))
		if err != nil {
			t.Fatal(err)
		}
		return n > 50
	})
}

// TestLivePageInABrowser: a storm comes, and its alert and charts are on the page without a reload; nothing of the log
// runs, nothing else is asked for, the console stays empty, no width scrolls sideways. Without scripts the text is
// there all the same, and when squall goes the page says so.
func TestLivePageInABrowser(t *testing.T) {
	log := filepath.Join(t.TempDir(), "access.log")
	before, storm := hostileStorm(t)
	p := watching(t, log, before)
	ctx := browser(t)
	var h heardOf
	if err := chromedp.Listen(ctx, h.event(p.base)); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(1280, 900), chromedp.Navigate(p.base+"/")); err != nil {
		t.Fatal(err)
	}
	shows(t, ctx, "the quiet page with its charts", func(s lived) bool {
		return s.Charts == 4 && strings.Contains(s.Status, "No alert fires.") && strings.HasPrefix(s.Connection, "live, as of ")
	})
	noteIsDrawn(t, ctx, p, before)
	if _, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("window.marked = true")); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(log, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(storm); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	s := shows(t, ctx, "the page of the storm", func(s lived) bool {
		return s.Articles >= 3 && strings.Contains(s.Alerts, "StormHurting") && strings.HasPrefix(s.Title, "(")
	})
	if !s.Same || s.Images != 0 || !strings.Contains(s.Alerts, "‹script>document.title='owned'") || strings.Contains(s.Title, "owned") {
		t.Errorf("%+v", s)
	}
	for _, width := range []int64{360, 1280} {
		if err := chromedp.Do(ctx, chromedp.EmulateViewport(width, 740)); err != nil {
			t.Fatal(err)
		}
		shows(t, ctx, fmt.Sprintf("nothing is wider than %d pixels", width), func(s lived) bool { return s.Wide <= 0 })
	}

	// Without scripts: an ordinary page, that asks to be loaded again.
	if _, err := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Do(ctx, chromedp.Navigate(p.base+"/")); err != nil {
		t.Fatal(err)
	}
	s = shows(t, ctx, "the page without scripts", func(s lived) bool { return s.Articles >= 3 })
	if s.Charts != 0 || s.Same || !strings.Contains(s.Alerts, "StormHurting") || s.Wide > 0 {
		t.Errorf("without scripts: %+v", s)
	}
	h.mu.Lock()
	if h.requests < 10 || len(h.faults) > 0 {
		t.Errorf("of %d requests the browser tells of %q", h.requests, h.faults)
	}
	h.mu.Unlock()

	// With them, and then without squall.
	if _, err := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{}); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Do(ctx, chromedp.Navigate(p.base+"/")); err != nil {
		t.Fatal(err)
	}
	shows(t, ctx, "the live page again", func(s lived) bool { return strings.HasPrefix(s.Connection, "live, ") && s.Charts == 4 })
	if code := p.stop(os.Interrupt); code != 0 {
		t.Errorf("squall left with %d", code)
	}
	shows(t, ctx, "that squall has gone", func(s lived) bool { return strings.HasPrefix(s.Connection, "not connected; as of 20") })
}
