package format

import (
	"bytes"

	"github.com/squall-sre/squall/pipeline"
)

// newPHPFPMSlow reads php-fpm's slow log: for each slow request a header, the script, and the stack with the
// innermost frame first. The event is told with that frame, so it waits for no line that may never come; the
// frames below it are passed over. A header that follows before any frame tells the one before it.
func newPHPFPMSlow(cfg Config) (pipeline.Format, error) {
	return &phpFPMSlow{times: phpFPM{zone: cfg.Zone, wall: wallClock{near: cfg.Near}}}, nil
}

type phpFPMSlow struct {
	times   phpFPM
	pending pipeline.Event
	waiting bool // for the first frame
}

var (
	slowPool   = []byte("]  [pool ")
	slowPID    = []byte("] pid ")
	slowScript = []byte("script_filename = ")
	slowFrame  = []byte("[0x")
)

// Parse takes one line of a request's several.
func (f *phpFPMSlow) Parse(line []byte, item *pipeline.Item) {
	line, skip := trimLine(line)
	if len(line) == 0 { // stands between two requests
		fail(item, pipeline.ReasonEmpty, skip)
		return
	}
	item.Kind = pipeline.Ignored
	switch {
	case bytes.HasPrefix(line, slowFrame):
		f.frame(line, item)
	case bytes.HasPrefix(line, slowScript):
		if f.waiting {
			f.pending.Script = clip(string(line[len(slowScript):min(len(line), len(slowScript)+2*maxText)]))
		}
	case line[0] == '[':
		if reason := f.header(line, item); reason != "" {
			fail(item, reason, skip)
		}
	default:
		fail(item, pipeline.ReasonNotAccess, skip)
	}
}

// header reads: [29-Mar-2026 01:26:24]  [pool www] pid 1234.
func (f *phpFPMSlow) header(line []byte, item *pipeline.Item) pipeline.Reason {
	pool := bytes.Index(line[:min(len(line), 64)], slowPool)
	if pool < 0 {
		return pipeline.ReasonNotAccess
	}
	t := f.times.time(line[:pool+1])
	if t == 0 {
		return pipeline.ReasonBadTime
	}
	name := line[pool+len(slowPool):]
	end := bytes.LastIndex(name[:min(len(name), 2*maxText)], slowPID)
	if end < 0 {
		return pipeline.ReasonTruncated
	}
	f.tell(item)
	f.waiting = true
	f.pending = pipeline.Event{
		Kind: pipeline.PHPSlow, Time: t, Pool: clip(string(name[:end])), PID: leadingInt(name[end+len(slowPID):]),
	}
	return ""
}

// frame reads: [0x00007f5c8a212a80] curl_exec() /var/www/html/lib/Http.php:87.
func (f *phpFPMSlow) frame(line []byte, item *pipeline.Item) {
	if !f.waiting {
		return
	}
	_, call, ok := bytes.Cut(line[:min(len(line), 2*maxText)], []byte("] "))
	if ok {
		f.pending.Message = clip(string(call))
	}
	f.tell(item)
}

// tell puts the waiting event, if there is one, into the item.
func (f *phpFPMSlow) tell(item *pipeline.Item) {
	if f.waiting {
		item.Kind = pipeline.IsEvents
		item.Events = append(item.Events, f.pending)
		f.waiting = false
	}
}
