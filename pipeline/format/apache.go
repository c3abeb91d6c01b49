package format

import (
	"bytes"
	"strings"
	"sync"

	"github.com/squall-sre/squall/pipeline"
)

// The LogFormats of httpd.conf that Apache's documentation and distributions give names.
const (
	apacheCommon   = `%h %l %u %t "%r" %>s %b`
	apacheCombined = apacheCommon + ` "%{Referer}i" "%{User-Agent}i"`
)

// apacheLayouts are often found, tried in this order. Which unit a whole number at the end has, nothing in the
// line tells: it is read as %D, microseconds. %T and %{ms}T need the LogFormat. The common format is not among
// them, since a combined line that was cut would be read as one.
var apacheLayouts = []string{
	apacheCombined,
	`%v:%p ` + apacheCombined, // vhost_combined
	`%v ` + apacheCombined,
	apacheCombined + ` %D`,
	`%v:%p ` + apacheCombined + ` %D`,
	`%v ` + apacheCombined + ` %D`,
	apacheCombined + ` %T/%D`,
	`%v:%p ` + apacheCombined + ` %T/%D`,
	apacheCombined + ` %D %X`,
	`%v:%p ` + apacheCombined + ` %D %X`,
	apacheCombined + ` %X`,
	apacheCombined + ` %I %O`, // combinedio
	`%v:%p ` + apacheCombined + ` %I %O`,
	apacheCombined + ` %D "%{X-Forwarded-For}i"`,
	apacheCombined + ` "%{X-Forwarded-For}i"`,
	apacheCombined + ` "%{X-Forwarded-For}i" %D`,
}

// apacheKnown compiles them once for all streams.
var apacheKnown = sync.OnceValues(func() ([]*percentLayout, error) {
	return compileAll(apacheLayouts, false, apacheDirective)
})

// newApache makes the family: with a LogFormat that alone; without one it finds the layout line by line.
func newApache(cfg Config) (pipeline.Format, error) {
	if cfg.LogFormat == "" {
		l, err := apacheKnown()
		f := makeApache(cfg, l)
		f.guess = &forwardedGuess{}
		return f, err
	}
	s, err := readApacheFormat(cfg.LogFormat)
	if err != nil {
		return nil, err
	}
	l, err := compileAll([]string{s}, false, apacheDirective)
	if err != nil {
		return nil, err
	}
	return makeApache(cfg, l), nil
}

// newApacheCombined reads combined and vhost_combined, with or without a number of microseconds behind them, or the
// LogFormat in their place.
func newApacheCombined(cfg Config) (pipeline.Format, error) {
	if cfg.LogFormat != "" {
		return newApache(cfg)
	}
	l, err := compileAll(apacheLayouts[:5], false, apacheDirective)
	return makeApache(cfg, l), err
}

// newApacheCommon reads the common log format, with or without a virtual host in front and %D behind.
func newApacheCommon(cfg Config) (pipeline.Format, error) {
	if cfg.LogFormat != "" {
		return newApache(cfg)
	}
	formats := []string{apacheCommon, `%v:%p ` + apacheCommon, `%v ` + apacheCommon, apacheCommon + ` %D`}
	l, err := compileAll(formats, false, apacheDirective)
	return makeApache(cfg, l), err
}

func makeApache(cfg Config, layouts []*percentLayout) *percentLines {
	f := newPercentLines(cfg, layouts, judgeApache)
	f.reader.guessed = cfg.LogFormat == ""
	return f
}

// judgeApache sets what %X tells. That the client left is seen by it alone: a status is what Apache sent, or would
// have sent. Over HTTP/2 an X tells nothing: mod_http2 calls a stream aborted as well when the end of its answer is sent
// before the worker that made it is back (h2_mplx.c, m_stream_cleanup), as happened to 20 to 45 % of requests whose
// clients got all of it (Apache 2.4.67).
func judgeApache(p *percentReader, r *pipeline.Record) {
	r.Abandoned = pipeline.No
	switch {
	case p.connection != 'X':
	case bytes.HasPrefix(r.Proto, []byte("HTTP/2")):
		r.Abandoned = pipeline.Unsaid
	default:
		r.Abandoned = pipeline.Yes
	}
}

// readApacheFormat reads what people paste: the format itself, with or without the quotes of httpd.conf, the whole
// LogFormat directive, or one of the well-known names.
func readApacheFormat(s string) (string, error) {
	switch s = strings.TrimSpace(s); s {
	case "common":
		return apacheCommon, nil
	case "combined":
		return apacheCombined, nil
	case "vhost_combined":
		return apacheLayouts[1], nil
	}
	return readPercentFormat(s, "LogFormat")
}

// apacheHeaders are the request's headers that squall takes, in lower case.
var apacheHeaders = map[string]variable{
	"referer": varReferer, "user-agent": varAgent, "host": varHTTPHost, "x-forwarded-for": varForwarded,
}

// apacheDirective tells what a directive of mod_log_config means.
func apacheDirective(name byte, arg string) percentElement {
	switch name {
	case 'h', 'a':
		switch {
		case arg == "":
			return percentElement{v: varClient}
		case arg == "c" && name == 'a':
			return percentElement{v: varPeer}
		}
	case 'l':
		return percentElement{kind: percentIdent}
	case 'u':
		return percentElement{v: varUser, kind: percentUser}
	case 't':
		return apacheTime(arg)
	case 'r':
		return percentElement{v: varRequest}
	case 's':
		return percentElement{v: varStatus}
	case 'b':
		return percentElement{v: varBodyBytes, kind: percentSize}
	case 'B':
		return percentElement{v: varBodyBytes}
	case 'O':
		return percentElement{v: varBytes}
	case 'D':
		return percentElement{v: varRequestTime, kind: percentWhole, unit: 1e3}
	case 'T':
		return percentElement{v: varRequestTime, kind: percentWhole, unit: apacheUnit(arg)}
	case 'X':
		return percentElement{kind: percentConnection}
	case 'v':
		return percentElement{v: varServerName}
	case 'V':
		return percentElement{v: varHost}
	case 'p':
		if arg == "" {
			return percentElement{kind: percentPort}
		}
	case 'm':
		return percentElement{v: varMethod}
	case 'U':
		return percentElement{v: varURI}
	case 'q':
		return percentElement{v: varIsArgs, kind: percentQuery}
	case 'H':
		return percentElement{v: varProto}
	case 'i':
		return percentElement{v: apacheHeaders[strings.ToLower(arg)]}
	case 'o':
		if strings.EqualFold(arg, "Content-Type") {
			return percentElement{v: varContentType}
		}
	}
	return percentElement{}
}

func apacheUnit(arg string) int64 {
	switch arg {
	case "us":
		return 1e3
	case "ms":
		return 1e6
	}
	return 1e9
}

// apacheTime reads the argument of %t: nothing, or a format of strftime with begin: or end: before it.
func apacheTime(arg string) percentElement {
	if arg == "" {
		return percentElement{v: varTimeLocal, before: "[", after: "]"}
	}
	arg, end := strings.CutPrefix(arg, "end:")
	arg = strings.TrimPrefix(arg, "begin:")
	e := percentElement{end: end}
	switch arg {
	case "sec":
		e.v = varMsec
	case "msec":
		e.v, e.kind, e.unit = varMsec, percentEpoch, 1e6
	case "usec":
		e.v, e.kind, e.unit = varMsec, percentEpoch, 1e3
	default:
		e.v = strftimeVariable(arg)
	}
	return e
}
