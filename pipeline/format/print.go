package format

import (
	"math"
	"net/netip"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/squall-sre/squall/pipeline"
)

// AppendJSON appends what `squall parse` prints for an item: one object and a line end for a Record and for each
// Event, nothing for other items. Times are RFC 3339 in UTC, with all digits where the log writes ms or µs and with
// those that they need elsewhere; durations are seconds.
// A key is left out where the log does not say; null stands where it says that there is none.
func AppendJSON(dst []byte, item *pipeline.Item) []byte {
	switch item.Kind {
	case pipeline.IsRecord:
		o := object{dst: append(dst, '{')}
		o.record(&item.Record)
		return append(o.dst, "}\n"...)
	case pipeline.IsEvents:
		for i := range item.Events {
			o := object{dst: append(dst, '{')}
			o.event(&item.Events[i])
			o.dst = append(o.dst, "}\n"...)
			dst = o.dst
		}
	}
	return dst
}

// An object is JSON being written.
type object struct {
	dst  []byte
	more bool
}

func (o *object) key(k string) {
	if o.more {
		o.dst = append(o.dst, ',')
	}
	o.more = true
	o.dst = append(o.dst, '"')
	o.dst = append(o.dst, k...)
	o.dst = append(o.dst, `":`...)
}

func (o *object) null(k string) {
	o.key(k)
	o.dst = append(o.dst, "null"...)
}

// bytes writes a text; nil is null.
func (o *object) bytes(k string, v []byte) {
	if v == nil {
		o.null(k)
		return
	}
	o.key(k)
	o.dst = appendString(o.dst, v)
}

// text writes a string unless it is empty.
func (o *object) text(k, v string) {
	if v != "" {
		o.key(k)
		o.dst = appendString(o.dst, v)
	}
}

func (o *object) int(k string, v int64) {
	o.key(k)
	o.dst = strconv.AppendInt(o.dst, v, 10)
}

// count writes a number unless it is 0.
func (o *object) count(k string, v int) {
	if v != 0 {
		o.int(k, int64(v))
	}
}

func (o *object) bool(k string, v bool) {
	o.key(k)
	o.dst = strconv.AppendBool(o.dst, v)
}

func (o *object) time(k string, ns int64) { o.stamp(k, ns, time.RFC3339Nano) }

func (o *object) stamp(k string, ns int64, layout string) {
	o.key(k)
	o.dst = append(o.dst, '"')
	o.dst = time.Unix(0, ns).UTC().AppendFormat(o.dst, layout)
	o.dst = append(o.dst, '"')
}

// stampLayout gives the layout that shows the steps of a log's times, in ns.
func stampLayout(step int64) string {
	switch step {
	case 1e6:
		return "2006-01-02T15:04:05.000Z07:00"
	case 1e3:
		return "2006-01-02T15:04:05.000000Z07:00"
	}
	return time.RFC3339Nano
}

// duration writes ns as seconds; Unknown is null.
func (o *object) duration(k string, ns int64) {
	if ns == pipeline.Unknown {
		o.null(k)
		return
	}
	o.key(k)
	o.dst = appendSeconds(o.dst, ns)
}

// appendSeconds writes ns as seconds, exactly, without trailing zeros.
func appendSeconds(dst []byte, ns int64) []byte {
	if ns < 0 {
		dst = append(dst, '-')
		ns = -ns
	}
	dst = strconv.AppendInt(dst, ns/1e9, 10)
	rest := ns % 1e9
	if rest == 0 {
		return dst
	}
	dst = append(dst, '.')
	for unit := int64(1e8); rest > 0; unit /= 10 {
		dst = append(dst, '0'+byte(rest/unit))
		rest %= unit
	}
	return dst
}

func (o *object) record(r *pipeline.Record) {
	if r.Time != 0 {
		o.stamp("time", r.Time, stampLayout(r.Resolution))
	} else {
		o.null("time")
	}
	o.bytes("site", r.Host)
	o.addr("client_ip", r.Client)
	if r.ClientPort != 0 {
		o.int("client_port", int64(r.ClientPort))
	}
	if r.Forwarded != nil && !r.Doubted {
		o.bytes("forwarded", r.Forwarded)
	}
	o.bytes("method", r.Method)
	o.bytes("path", r.Path)
	o.bytes("query", r.Query)
	o.bytes("proto", r.Proto)
	if r.Status == 0 {
		o.null("status")
	} else {
		o.int("status", int64(r.Status))
	}
	if r.Bytes == pipeline.Unknown {
		o.null("bytes")
	} else {
		o.int("bytes", r.Bytes)
	}
	o.duration("request_time", r.RequestTime)
	o.upstream(r)
	o.bytes("referer", r.Referer)
	o.bytes("user_agent", r.UserAgent)
	switch r.Abandoned {
	case pipeline.Yes, pipeline.No:
		o.bool("client_abandoned", r.Abandoned == pipeline.Yes)
	default:
		o.null("client_abandoned")
	}
	for _, flag := range []struct {
		key string
		set bool
	}{{"limited", r.Limited}, {"streaming", r.Streaming}, {"malformed", r.Malformed}, {"cut", r.Cut}} {
		if flag.set {
			o.bool(flag.key, true)
		}
	}
}

func (o *object) addr(k string, a netip.Addr) {
	if !a.IsValid() {
		o.null(k)
		return
	}
	o.key(k)
	o.dst = append(o.dst, '"')
	o.dst = a.AppendTo(o.dst)
	o.dst = append(o.dst, '"')
}

// upstream writes what is known of the upstream. A list is [] when no upstream was contacted, and left out
// when the log has none.
func (o *object) upstream(r *pipeline.Record) {
	o.duration("upstream_time", r.UpstreamTime)
	if len(r.UpstreamTimes) > 0 || r.Reached == pipeline.No {
		o.key("upstream_times")
		o.list(len(r.UpstreamTimes), func(i int) {
			if r.UpstreamTimes[i] == pipeline.Unknown {
				o.dst = append(o.dst, "null"...)
			} else {
				o.dst = appendSeconds(o.dst, r.UpstreamTimes[i])
			}
		})
	}
	if len(r.UpstreamStatuses) > 0 || r.Reached == pipeline.No || r.Reached == pipeline.Yes && len(r.UpstreamTimes) == 0 {
		o.key("upstream_statuses")
		o.list(len(r.UpstreamStatuses), func(i int) {
			if r.UpstreamStatuses[i] == 0 {
				o.dst = append(o.dst, "null"...)
			} else {
				o.dst = strconv.AppendUint(o.dst, uint64(r.UpstreamStatuses[i]), 10)
			}
		})
	}
	if r.Upstreams != nil {
		o.key("upstream_addrs")
		rest := r.Upstreams
		o.list(countItems(rest), func(int) {
			var item []byte
			item, rest = nextItem(rest)
			o.dst = appendString(o.dst, item)
		})
	}
	if r.Upstream != nil {
		o.bytes("upstream", r.Upstream)
	}
	if r.Reached != pipeline.Unsaid {
		o.bool("reached_upstream", r.Reached == pipeline.Yes)
	}
	if c := r.Cache.String(); c != "" {
		o.text("cache_status", c)
	} else {
		o.null("cache_status")
	}
}

func (o *object) list(n int, write func(i int)) {
	o.dst = append(o.dst, '[')
	for i := range n {
		if i > 0 {
			o.dst = append(o.dst, ',')
		}
		write(i)
	}
	o.dst = append(o.dst, ']')
}

func (o *object) event(e *pipeline.Event) {
	o.text("event", string(e.Kind))
	if e.Time != 0 {
		o.time("time", e.Time)
	} else {
		o.null("time")
	}
	o.text("node", e.Node)
	o.text("namespace", e.Namespace)
	o.text("pod", e.Pod)
	o.text("uid", e.UID)
	o.text("container", e.Container)
	o.text("image", e.Image)
	o.text("probe", e.Probe)
	o.text("reason", e.Reason)
	if e.HasExit {
		o.int("exit_code", int64(e.ExitCode))
	}
	if e.FinishedAt != 0 {
		o.time("finished_at", e.FinishedAt)
	}
	o.count("count", e.Count)
	o.count("restarts", e.Restarts)
	o.count("grace", e.Grace)
	if n := e.Population; n.All > 0 {
		o.key("population")
		o.dst, o.more = append(o.dst, '{'), false
		o.count("all", n.All)
		o.count("node", n.Node)
		o.count("namespace", n.Namespace)
		o.count("image", n.Image)
		o.dst, o.more = append(o.dst, '}'), true
	}
	o.text("pool", e.Pool)
	o.count("pid", e.PID)
	o.text("script", e.Script)
	o.text("request", e.Request)
	if e.Seconds > 0 && !math.IsInf(e.Seconds, 0) {
		o.key("seconds")
		o.dst = strconv.AppendFloat(o.dst, e.Seconds, 'f', -1, 64)
	}
	o.count("limit", e.Limit)
	o.count("signal", e.Signal)
	o.text("process", e.Process)
	if e.Cgroup != pipeline.Unsaid {
		o.bool("cgroup", e.Cgroup == pipeline.Yes)
	}
	o.text("zone", e.Zone)
	if e.Excess > 0 && !math.IsInf(e.Excess, 0) {
		o.key("excess")
		o.dst = strconv.AppendFloat(o.dst, e.Excess, 'f', -1, 64)
	}
	o.text("client_ip", e.Client)
	o.text("site", e.Host)
	o.text("message", e.Message)
}

const hexDigits = "0123456789abcdef"

// appendString writes a JSON string. Control and bidi characters, which could change what a terminal shows, are
// escaped; bytes that are no UTF-8 become U+FFFD.
func appendString[T string | []byte](dst []byte, s T) []byte {
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			switch {
			case c == '"' || c == '\\':
				dst = append(dst, '\\', c)
			case c < 0x20 || c == 0x7f:
				dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			default:
				dst = append(dst, c)
			}
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(string(s[i:min(i+utf8.UTFMax, len(s))]))
		switch {
		case r == utf8.RuneError && n == 1:
			dst = append(dst, "\ufffd"...)
		case hidden(r):
			dst = append(dst, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
		default:
			dst = append(dst, s[i:i+n]...)
		}
		i += n
	}
	return append(dst, '"')
}

// hidden tells whether r is a control, line-separating or bidi character of the basic plane.
func hidden(r rune) bool {
	switch {
	case r >= 0x80 && r <= 0x9f, r == 0x61c, r == 0xfeff:
		return true
	case r >= 0x200b && r <= 0x200f, r >= 0x2028 && r <= 0x202e, r >= 0x2060 && r <= 0x206f:
		return true
	}
	return false
}
