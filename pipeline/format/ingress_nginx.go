package format

import (
	"bytes"

	"github.com/squall-sre/squall/pipeline"
)

// ingressHeads are the fronts of ingress-nginx's log-format-upstream: since 0.26, and before it with
// [$the_real_ip], which may hold an X-Forwarded-For list.
var ingressHeads = []string{
	Combined + ` `,
	`$remote_addr - [$the_real_ip] - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" `,
}

// newIngressNginx reads the access log of the ingress-nginx controller; with a log_format (its
// log-format-upstream) that in its place. Objects (log-format-escape-json with a JSON format) are read by
// their usual names.
func newIngressNginx(cfg Config) (pipeline.Format, error) {
	if cfg.LogFormat != "" {
		return newNginxLayout(cfg)
	}
	heads, err := layouts(ingressHeads)
	if err != nil {
		return nil, err
	}
	object, err := newNginxObject(cfg, logFormat{})
	if err != nil {
		return nil, err
	}
	return &ingressNginx{head: heads[0], old: heads[1], object: object}, nil
}

type ingressNginx struct {
	head, old *layout
	object    *nginxObject
	reader    nginxReader
	names     int // pairs of brackets in the tail of the line at hand
}

var oldMark = []byte(" - [")

// Parse reads the front by a layout and the tail by its own grammar.
func (f *ingressNginx) Parse(line []byte, item *pipeline.Item) {
	trimmed, skip := trimLine(line)
	switch {
	case len(trimmed) == 0:
		fail(item, pipeline.ReasonEmpty, skip)
		return
	case trimmed[0] == '{':
		f.object.Parse(line, item)
		return
	case isKlog(trimmed) || isErrorLog(trimmed):
		fail(item, pipeline.ReasonNotAccess, skip)
		return
	}
	pos, reason := f.line(trimmed, &item.Record)
	if reason != "" {
		fail(item, reason, pos+skip)
		return
	}
	item.Kind = pipeline.IsRecord
}

// line reads a line of either layout. Since the address went out of its front the tail has a second pair of brackets:
// what looks like the old front before two is a user's name, and gives no address. A user's name of the old layout that
// has a bracket may be the rest of what stands in the first: then neither is believed.
func (f *ingressNginx) line(line []byte, r *pipeline.Record) (pos int, reason pipeline.Reason) {
	if i := bytes.IndexByte(line, ' '); i > 0 && bytes.HasPrefix(line[i:], oldMark) {
		pos, reason = f.read(f.old, line, r)
		if reason == "" && f.names == 1 {
			r.Doubted = bytes.IndexByte(f.reader.req.user, ']') >= 0
			return pos, ""
		}
		r.Reset()
	}
	p, why := f.read(f.head, line, r)
	if why != "" && p < pos {
		return pos, reason
	}
	return p, why
}

func (f *ingressNginx) read(head *layout, line []byte, r *pipeline.Record) (pos int, reason pipeline.Reason) {
	n := &f.reader
	n.req, f.names = nginxRequest{}, 0
	if pos, reason = head.read(n, line, 0, r); reason != "" {
		return pos, reason
	}
	if pos, reason = f.tail(line, pos, r); reason != "" {
		return pos, reason
	}
	return pos, n.finish(r)
}

// tail reads: request_length request_time [upstream] [[alternative]] addrs lengths times statuses [req_id].
func (f *ingressNginx) tail(line []byte, pos int, r *pipeline.Record) (int, pipeline.Reason) {
	n := &f.reader
	var word []byte
	length, next := token(line, pos)
	if _, ok := uintOf(length); !ok {
		return pos, cutOr(line, next, pipeline.ReasonFields)
	}
	pos = next
	word, next = token(line, pos)
	if reason := n.set(r, varRequestTime, word); reason != "" || len(word) == 0 {
		return pos, cutOr(line, next, pipeline.ReasonFields)
	}
	pos = next
	for names := 0; names < 2 && pos < len(line) && line[pos] == '['; names++ {
		end := bytes.IndexByte(line[pos:], ']')
		if end < 0 {
			return pos, pipeline.ReasonTruncated
		}
		if names == 0 {
			n.set(r, varUpstreamName, line[pos+1:pos+end])
		}
		f.names++
		if pos += end + 1; pos < len(line) && line[pos] == ' ' {
			pos++
		}
	}
	if line[min(next, len(line)-1)] != '[' {
		return next, cutOr(line, next, pipeline.ReasonFields)
	}
	return f.lists(line, pos, r)
}

var ingressLists = [4]variable{varUpstreamAddr, varUpstreamLength, varUpstreamTime, varUpstreamStatus}

// lists reads the four lists; that they have equally many items is the proof that the cuts are right.
func (f *ingressNginx) lists(line []byte, pos int, r *pipeline.Record) (int, pipeline.Reason) {
	count := 0
	for i, v := range ingressLists {
		if pos >= len(line) {
			return len(line), pipeline.ReasonTruncated
		}
		end := listEnd(line, pos)
		items := countItems(line[pos:end])
		if i == 0 {
			count = items
		} else if items != count {
			return pos, cutOr(line, end, pipeline.ReasonFields)
		}
		if reason := f.reader.set(r, v, line[pos:end]); reason != "" {
			return pos, reason
		}
		if pos = end; pos < len(line) {
			pos++
		}
	}
	id, next := token(line, pos) // $req_id: absent before 0.20
	if next < len(line) || pos < len(line) && len(id) == 0 {
		return pos, pipeline.ReasonFields
	}
	return len(line), ""
}

func countItems(list []byte) int {
	count := 0
	for len(list) > 0 {
		_, list = nextItem(list)
		count++
	}
	return count
}

// token takes a word up to the next space; next is behind that space.
func token(line []byte, pos int) (word []byte, next int) {
	if pos >= len(line) {
		return nil, len(line)
	}
	if i := find(line, pos, ' '); i >= 0 {
		return line[pos:i], i + 1
	}
	return line[pos:], len(line)
}

// cutOr gives ReasonTruncated when the line ended, else the reason.
func cutOr(line []byte, pos int, reason pipeline.Reason) pipeline.Reason {
	if pos >= len(line) {
		return pipeline.ReasonTruncated
	}
	return reason
}
