package format

import (
	"strings"
	"sync"

	"github.com/squall-sre/squall/pipeline"
)

// phpAccessDefault is php-fpm's own access.format, with the query of the one that www.conf suggests.
const phpAccessDefault = `%R - %u %t "%m %r%Q%q" %s`

// phpAccessLayouts are the default, the one that www.conf suggests, and near ones. A lone number behind the status
// is read as %d, seconds.
var phpAccessLayouts = []string{
	phpAccessDefault,
	phpAccessDefault + ` %d`,
	phpAccessDefault + ` %{milli}d %{kilo}M %C%%`,
	phpAccessDefault + ` %f %{milli}d %{kilo}M %C%%`,
	phpAccessDefault + ` %f %{milli}d %{kilo}M`,
}

// newPHPFPMAccess reads php-fpm's access log, whose duration is the worker's true time of service. The LogFormat is
// the pool's access.format. Times are the request's start.
func newPHPFPMAccess(cfg Config) (pipeline.Format, error) {
	l, err := phpAccessKnown()
	if cfg.LogFormat != "" {
		var s string
		if s, err = readPercentFormat(strings.TrimSpace(cfg.LogFormat), "access.format"); err == nil {
			l, err = compileAll([]string{s}, true, phpDirective)
		}
	}
	if err != nil {
		return nil, err
	}
	return newPercentLines(cfg, l, judgePHPAccess), nil
}

// phpAccessKnown compiles the layouts once for all streams. php-fpm escapes nothing.
var phpAccessKnown = sync.OnceValues(func() ([]*percentLayout, error) {
	return compileAll(phpAccessLayouts, true, phpDirective)
})

// judgePHPAccess says what this log is: the upstream's own, which does not know whether anybody still waited.
func judgePHPAccess(_ *percentReader, r *pipeline.Record) {
	r.Reached, r.UpstreamTime = pipeline.Yes, r.RequestTime
	if r.Status != 0 {
		r.UpstreamStatuses = append(r.UpstreamStatuses[:0], r.Status)
	}
	r.Abandoned = pipeline.Unsaid
}

// phpEnvironment are the FastCGI parameters that squall takes.
var phpEnvironment = map[string]variable{
	"HTTP_HOST": varHTTPHost, "SERVER_NAME": varServerName, "HTTP_USER_AGENT": varAgent, "HTTP_REFERER": varReferer,
	"HTTP_X_FORWARDED_FOR": varForwarded, "SERVER_PROTOCOL": varProto, "REMOTE_ADDR": varClient,
	"REQUEST_URI": varRequestURI, "REQUEST_METHOD": varMethod, "QUERY_STRING": varArgs,
}

// phpDirective tells what a directive of access.format means (php-fpm's www.conf lists them).
func phpDirective(name byte, arg string) percentElement {
	switch name {
	case 'R': // who speaks FastCGI: the server in front, whatever www.conf calls it
		return percentElement{v: varGateway}
	case 'u':
		return percentElement{v: varUser}
	case 't', 'T':
		v := varTimeLocal
		if arg != "" {
			v = strftimeVariable(arg)
		}
		return percentElement{v: v, end: name == 'T'}
	case 'm':
		return percentElement{v: varMethod}
	case 'r':
		return percentElement{v: varURIAny}
	case 'Q':
		return percentElement{v: varIsArgs}
	case 'q':
		return percentElement{v: varArgs}
	case 's':
		return percentElement{v: varStatus}
	case 'd':
		return phpDuration(arg)
	case 'M', 'C':
		return percentElement{kind: percentNumber}
	case 'n':
		return percentElement{v: varUpstreamName}
	case 'e':
		return percentElement{v: phpEnvironment[arg]}
	case 'o':
		if strings.EqualFold(arg, "Content-Type") {
			return percentElement{v: varContentType}
		}
	}
	return percentElement{}
}

func phpDuration(arg string) percentElement {
	e := percentElement{v: varRequestTime, kind: percentDecimal, unit: 1e9}
	switch strings.ToLower(arg) {
	case "milliseconds", "milli", "mili":
		e.unit = 1e6
	case "microseconds", "micro":
		e.unit, e.kind = 1e3, percentWhole
	}
	return e
}
