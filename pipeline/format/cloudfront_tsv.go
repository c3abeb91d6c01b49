package format

import (
	"bytes"
	"strings"

	"github.com/squall-sre/squall/pipeline"
)

// cloudFrontNames are the fields of the standard log (legacy) in their order.
var cloudFrontNames = splitNames(`date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) cs(User-Agent)
	cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header cs-protocol cs-bytes time-taken
	x-forwarded-for ssl-protocol ssl-cipher x-edge-response-result-type cs-protocol-version fle-status
	fle-encrypted-fields c-port time-to-first-byte x-edge-detailed-result-type sc-content-type sc-content-len
	sc-range-start sc-range-end`)

func splitNames(s string) [][]byte {
	var names [][]byte
	for name := range strings.FieldsSeq(s) {
		names = append(names, []byte(name))
	}
	return names
}

// newCloudFrontTSV reads CloudFront's standard log in text. The header of a file names its fields; a stream that
// began behind it is read by the number of its fields, in the order that AWS has kept since 2014. The time is the
// response's end, in UTC whatever zone is configured. It is delivered minutes late, up to a day.
func newCloudFrontTSV(Config) (pipeline.Format, error) { return &cloudFrontTSV{}, nil }

type cloudFrontTSV struct {
	fields cloudFrontFields
	mem    arena
	names  [][]byte // of the header; nil: none was seen
	count  int      // the fields of the line before, without a header
}

var (
	fieldsHeader  = []byte("#Fields:")
	versionHeader = []byte("#Version:")
)

// Parse reads a line, or remembers a header.
func (f *cloudFrontTSV) Parse(line []byte, item *pipeline.Item) {
	line, skip := trimLine(line)
	switch {
	case len(line) == 0:
		fail(item, pipeline.ReasonEmpty, skip)
		return
	case bytes.HasPrefix(line, fieldsHeader):
		f.header(line[len(fieldsHeader):])
		item.Kind = pipeline.Ignored
		return
	case bytes.HasPrefix(line, versionHeader):
		item.Kind = pipeline.Ignored
		return
	}
	pos, reason := f.read(line, &item.Record)
	if reason != "" {
		fail(item, reason, pos+skip)
		return
	}
	item.Kind = pipeline.IsRecord
}

// maxHeader bounds a header, in bytes: AWS has some 50 fields.
const maxHeader = 8 << 10

// header keeps the names of the fields.
func (f *cloudFrontTSV) header(text []byte) {
	f.names, f.count = nil, 0
	if len(text) <= maxHeader {
		f.names = bytes.Fields(bytes.Clone(text))
	}
}

// layout chooses the names of a line of n fields.
func (f *cloudFrontTSV) layout(n int) (names [][]byte, reason pipeline.Reason) {
	if f.names != nil {
		switch {
		case n < len(f.names):
			return nil, pipeline.ReasonTruncated
		case n > len(f.names):
			return nil, pipeline.ReasonFields
		}
		return f.names, ""
	}
	switch n {
	case 19, 23, 24, 26: // what AWS wrote from 2014, 2015, 2016 and 2017 on
	default:
		if n < len(cloudFrontNames) {
			if n < f.count {
				return nil, pipeline.ReasonTruncated
			}
			return nil, pipeline.ReasonFields
		}
	}
	return cloudFrontNames[:min(n, len(cloudFrontNames))], ""
}

func (f *cloudFrontTSV) read(line []byte, r *pipeline.Record) (pos int, reason pipeline.Reason) {
	if line[0] == '#' || f.names == nil && !startsWithDate(line) {
		return 0, pipeline.ReasonNotAccess
	}
	n := bytes.Count(line, []byte("\t")) + 1
	names, reason := f.layout(n)
	if reason != "" {
		return len(line), reason
	}
	f.fields.reset(&f.mem)
	for _, name := range names {
		end := find(line, pos, '\t')
		if end < 0 {
			end = len(line)
		}
		if reason := f.fields.set(r, name, line[pos:end]); reason != "" {
			return pos, reason
		}
		pos = min(end+1, len(line))
	}
	f.fields.line.anyFront = f.fields.line.anyFront || f.names != nil // a header is proof, whichever fields were chosen
	if reason := f.fields.finish(r); reason != "" {
		return 0, reason
	}
	f.count = n
	return pos, ""
}

func startsWithDate(line []byte) bool {
	return len(line) > 10 && line[4] == '-' && line[7] == '-' && (line[10] == '\t' || line[10] == ' ') && num(line[:4]) > 0
}
