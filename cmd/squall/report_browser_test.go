package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// heardOf is what a browser told while it showed a page.
type heardOf struct {
	mu     sync.Mutex
	faults []string

	requests int
}

func (h *heardOf) event(page string) func(any) {
	return func(ev any) {
		h.mu.Lock()
		defer h.mu.Unlock()
		switch ev := ev.(type) {
		case *runtime.EventConsoleAPICalled:
			h.faults = append(h.faults, fmt.Sprintf("console: %s", ev.Type))
		case *runtime.EventExceptionThrown:
			h.faults = append(h.faults, ev.ExceptionDetails.Text)
		case *log.EventEntryAdded:
			h.faults = append(h.faults, ev.Entry.Text)
		case *network.EventRequestWillBeSent:
			if h.requests++; !strings.HasPrefix(ev.Request.URL, page) {
				h.faults = append(h.faults, "request for "+ev.Request.URL)
			}
		}
	}
}

// browser starts a Chromium for the test.
func browser(t *testing.T) context.Context {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(command(t, "chromium")), chromedp.NoSandbox)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	return ctx
}

// rendered is what the page has, and what it became.
type rendered struct {
	Title, Heading                string
	Scripts, Charts, Tables, Wide int
	Told                          bool
}

const look = `document.querySelectorAll("details").forEach(d => d.open = true); ({
	Title: document.title, Heading: document.querySelector("h1").textContent, Scripts: document.scripts.length,
	Charts: document.querySelectorAll("svg[role=img] > title").length, Tables: document.querySelectorAll("table thead th[scope=col]").length,
	Told: document.body.textContent.includes("<script>document.title"),
	Wide: document.documentElement.scrollWidth - window.innerWidth})`

// TestReportInABrowser: the page asks for nothing, says nothing to the console, runs nothing, and no width makes it
// scroll sideways, whatever the log held.
func TestReportInABrowser(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(file, []byte(reported(t, "html", "--workers", "25", hostileLog(t))), 0o600); err != nil {
		t.Fatal(err)
	}
	page := "file://" + file
	ctx := browser(t)
	var h heardOf
	if err := chromedp.Listen(ctx, h.event(page)); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	for _, width := range []int64{360, 1280} {
		if err := chromedp.Do(ctx, chromedp.EmulateViewport(width, 740), chromedp.Navigate(page)); err != nil {
			t.Fatal(err)
		}
		s, err := chromedp.Run(ctx, chromedp.Evaluate[rendered](look))
		if err != nil {
			t.Fatal(err)
		}
		if s.Scripts != 0 || s.Title == "owned" {
			t.Errorf("the page holds %d scripts; its title is %q", s.Scripts, s.Title)
		}
		if s.Charts < 2 || s.Tables == 0 {
			t.Errorf("%d charts and %d heads of columns", s.Charts, s.Tables)
		}
		if s.Wide > 0 {
			t.Errorf("at %d pixels the page is %d too wide", width, s.Wide)
		}
		if !strings.Contains(s.Heading, "pinned the origin") || !s.Told {
			t.Errorf("the first heading is %q; the page shows the path as it was logged: %t", s.Heading, s.Told)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.requests < 2 || len(h.faults) > 0 {
		t.Errorf("of the page's %d loads the browser tells of %q", h.requests, h.faults)
	}
}
