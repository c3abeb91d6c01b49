package format

import (
	"bytes"
	"fmt"

	"github.com/squall-sre/squall/pipeline"
)

// newNginx makes the family: with a log_format that alone; without one it finds the variant line by line,
// for files mix them (several access_log directives, a changed log_format).
func newNginx(cfg Config) (pipeline.Format, error) {
	if cfg.LogFormat != "" {
		return newNginxLayout(cfg)
	}
	return nginxVariants(cfg)
}

var nginxVariants = family(newNginxJSON, newIngressNginx, newNginxExtended, newExactCombined)

// newNginxLayout compiles a log_format of nginx.conf.
func newNginxLayout(cfg Config) (pipeline.Format, error) {
	f, err := readLogFormat(cfg.LogFormat)
	if err != nil {
		return nil, err
	}
	l, err := compile(f)
	if err != nil {
		return nil, err
	}
	if l.json {
		return newNginxObject(cfg, f)
	}
	n := &nginxText{layout: l}
	n.reader.iso.zone, n.reader.raw = cfg.Zone, l.raw
	return n, nil
}

// newNginxCombined reads nginx's built-in format, or the log_format in its place.
func newNginxCombined(cfg Config) (pipeline.Format, error) {
	if cfg.LogFormat == "" {
		cfg.LogFormat = Combined
	}
	return newNginxLayout(cfg)
}

// newExactCombined reads combined as nginx alone writes it, so that auto leaves Apache's lines to the apache family.
func newExactCombined(cfg Config) (pipeline.Format, error) {
	l, err := nginxKnown()
	if err != nil {
		return nil, err
	}
	f := &nginxText{layout: l[0]}
	f.reader.iso.zone, f.reader.exact = cfg.Zone, true
	return f, nil
}

// nginxText reads the lines of one layout.
type nginxText struct {
	layout *layout
	reader nginxReader
}

// Parse demands that the layout fits the line from its first byte to its last.
func (f *nginxText) Parse(line []byte, item *pipeline.Item) {
	line, skip := trimLine(line)
	if len(line) == 0 {
		fail(item, pipeline.ReasonEmpty, skip)
		return
	}
	pos, reason := f.reader.parse(f.layout, line, &item.Record)
	if reason != "" {
		fail(item, reason, pos+skip)
		return
	}
	item.Kind = pipeline.IsRecord
}

// parse reads a whole line by one layout.
func (n *nginxReader) parse(l *layout, line []byte, r *pipeline.Record) (int, pipeline.Reason) {
	n.req = nginxRequest{}
	pos, reason := l.read(n, line, 0, r)
	if reason == "" && pos != len(line) {
		reason = pipeline.ReasonFields
	}
	if reason == "" {
		reason = n.finish(r)
	}
	return pos, reason
}

// layouts compiles formats that are known to be right.
func layouts(formats []string) ([]*layout, error) {
	out := make([]*layout, 0, len(formats))
	for _, s := range formats {
		l, err := compile(logFormat{text: s, escape: "default"})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s, err)
		}
		out = append(out, l)
	}
	return out, nil
}

// isErrorLog tells whether a line is one of nginx's error log: 2026/03/29 01:26:24 [error] …
func isErrorLog(line []byte) bool {
	return len(line) > 21 && line[4] == '/' && line[7] == '/' && line[10] == ' ' && line[13] == ':' &&
		bytes.HasPrefix(line[19:], []byte(" ["))
}
