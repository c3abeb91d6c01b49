package format

import (
	"bytes"

	"github.com/squall-sre/squall/pipeline"
)

// newCaddyConsole reads what Caddy's console encoder writes: time, level, logger and message parted by tabs,
// perhaps coloured, then the other fields as JSON.
func newCaddyConsole(cfg Config) (pipeline.Format, error) {
	o, err := newCaddyObject(cfg)
	if err != nil {
		return nil, err
	}
	return &caddyConsole{object: o, records: jsonRecords{object: o}}, nil
}

type caddyConsole struct {
	object  *caddyObject
	records jsonRecords
}

// Parse reads the columns, then the object.
func (f *caddyConsole) Parse(line []byte, item *pipeline.Item) {
	rest, skip := trimLine(line)
	if len(rest) == 0 {
		fail(item, pipeline.ReasonEmpty, skip)
		return
	}
	var columns [4][]byte
	at := 0
	for i := range columns {
		n := bytes.IndexByte(rest[at:], '\t')
		if n < 0 {
			reason := pipeline.ReasonNotAccess
			if i > 0 && isLevel(uncoloured(columns[1])) {
				reason = pipeline.ReasonTruncated
			}
			fail(item, reason, at+skip)
			return
		}
		columns[i] = uncoloured(rest[at : at+n])
		at += n + 1
	}
	stamp := columns[0]
	kind := jsonString
	if len(stamp) > 0 && bytes.IndexByte(stamp, '-') < 0 && bytes.IndexByte(stamp, '/') < 0 {
		kind = jsonNumber
	}
	t, step, ok := f.object.clock.parse(kind, stamp)
	if !ok || !isLevel(columns[1]) {
		fail(item, pipeline.ReasonNotAccess, skip)
		return
	}
	f.object.stamp = caddyStamp{time: t, step: step, logger: columns[2], message: columns[3]}
	f.records.Parse(rest[at:], item)
	if item.Kind == pipeline.Failed {
		item.Column += at + skip
	}
}

func isLevel(s []byte) bool {
	switch string(s) {
	case "debug", "info", "warn", "error", "panic", "fatal", "DEBUG", "INFO", "WARN", "ERROR", "PANIC", "FATAL":
		return true
	}
	return false
}

// uncoloured takes the escape sequences of a colour off both ends: \x1b[34minfo\x1b[0m.
func uncoloured(s []byte) []byte {
	for len(s) > 2 && s[0] == 0x1b && s[1] == '[' {
		end := bytes.IndexByte(s, 'm')
		if end < 0 {
			return s
		}
		s = s[end+1:]
	}
	if i := bytes.IndexByte(s, 0x1b); i >= 0 {
		s = s[:i]
	}
	return s
}
