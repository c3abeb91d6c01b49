package format

import (
	"bytes"

	"github.com/squall-sre/squall/pipeline"
)

// newNginxError reads nginx's error log: requests that a limiter refused or delayed, and upstreams that did not
// answer in time. The rest is of no interest. Times carry no zone.
func newNginxError(cfg Config) (pipeline.Format, error) {
	f := &nginxError{}
	f.clock.iso.zone, f.clock.iso.wall.near = cfg.Zone, cfg.Near
	return f, nil
}

type nginxError struct{ clock stampClock }

var (
	errorTag       = []byte("nginx: ")
	errorClient    = []byte(", client: ")
	errorHost      = []byte(`, host: "`)
	errorRequest   = []byte(`, request: "`)
	errorLimiting  = []byte("limiting ") // requests, connections
	errorDelaying  = []byte("delaying request")
	errorTimedOut  = []byte("upstream timed out (")
	errorDryRun    = []byte(", dry run")
	errorExcess    = []byte("excess: ")
	errorZone      = []byte(`by zone "`)
	requestEndings = [][]byte{[]byte(`", subrequest: "`), []byte(`", upstream: "`), []byte(`", host: "`), []byte(`", referrer: "`)}
)

// maxErrorLine is where nginx cuts an error line, in bytes (NGX_MAX_ERROR_STR).
const maxErrorLine = 2048

// Parse reads: time [level] pid#tid: *connection message, client: …, server: …, request: "…", upstream: "…", host: "…".
func (f *nginxError) Parse(line []byte, item *pipeline.Item) {
	line, skip := trimLine(line)
	if len(line) == 0 {
		fail(item, pipeline.ReasonEmpty, skip)
		return
	}
	start := 0
	if !isErrorLog(line) { // behind the header of syslog
		start = bytes.Index(line[:min(len(line), maxFront)], errorTag)
		if start < 0 || !syslogFront(line[:start+len(errorTag)]) || !isErrorLog(line[start+len(errorTag):]) {
			fail(item, pipeline.ReasonNotAccess, skip)
			return
		}
		start += len(errorTag)
	}
	t, ok := f.clock.wall(line[start : start+isoLen])
	if !ok {
		fail(item, pipeline.ReasonBadTime, start+skip)
		return
	}
	e := pipeline.Event{Time: t}
	message := errorMessage(line[start:])
	if !f.event(message, &e) {
		item.Kind = pipeline.Ignored
		return
	}
	client := bytes.Index(message, errorClient)
	if client < 0 {
		fail(item, pipeline.ReasonTruncated, len(line)+skip)
		return
	}
	setErrorContext(&e, message[client+len(errorClient):])
	e.Message = clip(string(message[:min(len(message), 2*maxText)]))
	item.Kind = pipeline.IsEvents
	item.Events = append(item.Events, e)
}

// errorMessage gives what follows the level, the process and the connection.
func errorMessage(line []byte) []byte {
	_, m, _ := bytes.Cut(line, []byte("] "))
	if process, next := token(m, 0); len(process) > 1 && process[len(process)-1] == ':' {
		m = m[next:]
	}
	if connection, next := token(m, 0); len(connection) > 1 && connection[0] == '*' {
		m = m[next:]
	}
	return m
}

// event reads what happened; false when it is of no interest. What a limiter only would have done (dry run) is not.
func (f *nginxError) event(m []byte, e *pipeline.Event) bool {
	said := m[:min(len(m), maxText)]
	if i := bytes.Index(said, errorClient); i >= 0 {
		said = said[:i]
	}
	switch {
	case bytes.HasPrefix(said, errorLimiting), bytes.HasPrefix(said, errorDelaying):
		zone := bytes.Index(said, errorZone)
		if zone < 0 || bytes.Contains(said[:zone], errorDryRun) {
			return false
		}
		e.Kind, e.Reason = pipeline.LimitRequest, "limited"
		if said[0] == 'd' {
			e.Reason = "delayed"
		}
		name, _, _ := bytes.Cut(said[zone+len(errorZone):], []byte(`"`))
		e.Zone = clip(string(name))
		if i := bytes.Index(said[:zone], errorExcess); i >= 0 {
			excess, _ := token(said[i+len(errorExcess):zone], 0)
			e.Excess = seconds(bytes.TrimSuffix(excess, []byte(",")))
		}
		return true
	case bytes.HasPrefix(said, errorTimedOut):
		e.Kind = pipeline.UpstreamTimeout
		return true
	}
	return false
}

// setErrorContext reads the fields behind the message, from the client's address on.
func setErrorContext(e *pipeline.Event, context []byte) {
	if len(context) > maxErrorLine {
		context = context[:maxErrorLine]
	}
	client, _, _ := bytes.Cut(context, []byte(","))
	if a := addrOf(client); a.IsValid() {
		e.Client = a.String()
	}
	if i := bytes.Index(context, errorRequest); i >= 0 {
		request := context[i+len(errorRequest):]
		end := len(request)
		for _, ending := range requestEndings {
			if i := bytes.Index(request[:end], ending); i >= 0 {
				end = i
			}
		}
		e.Request = clip(string(bytes.TrimSuffix(request[:end], []byte(`"`))))
		context = request[end:]
	}
	if i := bytes.Index(context, errorHost); i >= 0 {
		host, _, _ := bytes.Cut(context[i+len(errorHost):], []byte(`"`))
		e.Host = clip(string(hostOf(host)))
	}
}
