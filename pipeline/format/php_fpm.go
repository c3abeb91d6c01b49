package format

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/squall-sre/squall/pipeline"
)

// newPHPFPM reads php-fpm's error log. Its times are local and may be missing (syslog, journald).
func newPHPFPM(cfg Config) (pipeline.Format, error) {
	return &phpFPM{
		zone: cfg.Zone, wall: wallClock{near: cfg.Near},
		header: syslogFramer{iso: isoClock{zone: cfg.Zone}, short: yearless{zone: cfg.Zone, year: cfg.Year, near: cfg.Near}},
	}, nil
}

type phpFPM struct {
	zone   *time.Location
	wall   wallClock
	header syslogFramer
}

var (
	phpLevels = [][]byte{[]byte("WARNING: "), []byte("NOTICE: "), []byte("ERROR: "), []byte("ALERT: "), []byte("DEBUG: ")}
	// phpSyslogLevels are those of error_log = syslog (zlog_buf_prefix in php-src).
	phpSyslogLevels = [][]byte{[]byte("[WARNING] "), []byte("[NOTICE] "), []byte("[ERROR] "), []byte("[ALERT] "), []byte("[DEBUG] ")}
	// phpSays begins what php-fpm says to syslog. Others write such levels, too.
	phpSays = [][]byte{phpPool, []byte("fpm is running"), []byte("ready to handle connections"), []byte("Finishing "),
		[]byte("Terminating "), []byte("exiting, bye-bye!"), []byte("Reloading "), []byte("reloading: "), []byte("using inherited socket")}

	phpPool       = []byte("[pool ")
	phpChild      = []byte("child ")
	phpScript     = []byte(", script '")
	phpRequest    = []byte(`' (request: "`)
	phpTerminated = []byte(" sec), terminating")
	phpLogged     = []byte(" sec), logging")
	phpTimedOut   = []byte(" execution timed out")
	phpTooSlow    = []byte(" executing too slow")
	phpReached    = []byte("server reached ")
	phpMax        = []byte("max_children setting (")
	phpBusy       = []byte("seems busy")
	phpSignal     = []byte(" exited on signal ")
	phpCode       = []byte(" exited with code ")
	phpPID        = []byte("pid ")
	phpLine       = []byte("(), line ")
	phpSupervisor = []byte("WARN received SIGTERM")
)

// Parse finds the level, then the pool, then what is said of it. Text of scripts and applications is never
// searched: what counts stands at the front or at the end of the line.
func (f *phpFPM) Parse(line []byte, item *pipeline.Item) {
	line, skip := trimLine(line)
	if len(line) == 0 {
		fail(item, pipeline.ReasonEmpty, skip)
		return
	}
	var stamped int64
	if line[0] != '[' {
		if rest, _, t, reason := f.header.Next(line, 0); reason == "" && len(rest) < len(line) {
			line, stamped = rest, t
		}
	}
	start, message := phpMessage(line)
	if message == nil {
		if bytes.HasPrefix(line, phpSupervisor) {
			item.Kind = pipeline.Ignored
			return
		}
		fail(item, pipeline.ReasonNotAccess, skip)
		return
	}
	var e pipeline.Event
	if !phpEvent(message, &e) {
		item.Kind = pipeline.Ignored
		return
	}
	e.Time = cmp.Or(f.time(line[:start]), stamped)
	e.Message = clip(string(message))
	item.Kind = pipeline.IsEvents
	item.Events = append(item.Events, e)
}

// phpMessage finds what follows the level. The level stands at the front, behind the time, or behind a syslog
// tag; anywhere else it is somebody's text.
func phpMessage(line []byte) (start int, message []byte) {
	for _, level := range phpSyslogLevels {
		if m, ok := bytes.CutPrefix(line, level); ok {
			said := phpWithoutPlace(m)
			if slices.ContainsFunc(phpSays, func(words []byte) bool { return bytes.HasPrefix(said, words) }) {
				return 0, m
			}
		}
	}
	near := line[:min(len(line), 160)]
	for _, level := range phpLevels {
		i := bytes.Index(near, level)
		if i < 0 {
			continue
		}
		front := bytes.TrimRight(line[:i], " ")
		if len(front) == 0 || front[0] == '[' && front[len(front)-1] == ']' && len(front) <= 40 ||
			bytes.HasSuffix(front, []byte("]:")) || bytes.HasSuffix(front, []byte("php-fpm:")) {
			return i, line[i+len(level):]
		}
	}
	return 0, nil
}

// phpEvent reads one message; false when it is of no interest.
func phpEvent(m []byte, e *pipeline.Event) bool {
	m = phpWithoutPlace(m)
	if !bytes.HasPrefix(m, phpPool) {
		return false
	}
	end := bytes.Index(m, []byte("] "))
	if end < 0 {
		return false
	}
	e.Pool = clip(string(m[len(phpPool):end]))
	m = m[end+2:]
	switch {
	case bytes.HasPrefix(m, phpReached):
		i := bytes.Index(m, phpMax)
		if i < 0 {
			return false
		}
		e.Kind = pipeline.PHPMaxChildren
		e.Limit = leadingInt(m[i+len(phpMax):])
		return true
	case bytes.HasPrefix(m, phpBusy):
		e.Kind = pipeline.PHPBusy
		return true
	case bytes.HasPrefix(m, phpChild):
		m = m[len(phpChild):]
		e.PID = leadingInt(m)
		return phpChildEvent(bytes.TrimLeft(m, "0123456789"), e)
	}
	return false
}

// phpWithoutPlace takes off what log_level=debug puts in front of every message: "pid 1, fpm_request_check_timed_out(),
// line 265: ", without the pid for syslog and in a child.
func phpWithoutPlace(m []byte) []byte {
	rest := m
	if pid, behind, ok := bytes.Cut(m, []byte(", ")); ok && bytes.HasPrefix(pid, phpPID) && num(pid[len(phpPID):]) >= 0 {
		rest = behind
	}
	name, rest, ok := bytes.Cut(rest, phpLine)
	if !ok || !isKey(name) {
		return m
	}
	line, rest, ok := bytes.Cut(rest, []byte(": "))
	if !ok || num(line) < 0 {
		return m
	}
	return rest
}

// phpChildEvent reads what follows "child N".
func phpChildEvent(m []byte, e *pipeline.Event) bool {
	switch {
	case bytes.HasPrefix(m, phpScript):
		return phpSlow(m[len(phpScript):], e)
	case bytes.HasPrefix(m, phpSignal):
		e.Kind, e.Signal = pipeline.PHPChildExit, leadingInt(m[len(phpSignal):])
		e.Seconds = phpAge(m)
		return true
	case bytes.HasPrefix(m, phpCode):
		code := leadingInt(m[len(phpCode):])
		e.Kind, e.ExitCode, e.HasExit = pipeline.PHPChildExit, code, true
		e.Seconds = phpAge(m)
		return code != 0 // 0 is a child that served its pm.max_requests
	}
	return false
}

// phpAge reads "… after 3.227060 seconds from start".
func phpAge(m []byte) float64 {
	_, after, ok := bytes.Cut(m, []byte(" after "))
	if !ok {
		return 0
	}
	word, _ := token(after, 0)
	return seconds(word)
}

// phpSlow reads SCRIPT' (request: "REQUEST") execution timed out (N sec), terminating. Neither script nor
// request is escaped, so the duration is read from the right.
func phpSlow(m []byte, e *pipeline.Event) bool {
	switch {
	case bytes.HasSuffix(m, phpTerminated):
		e.Kind, m = pipeline.PHPTimeout, m[:len(m)-len(phpTerminated)]
	case bytes.HasSuffix(m, phpLogged):
		e.Kind, m = pipeline.PHPSlow, m[:len(m)-len(phpLogged)]
	default:
		return false
	}
	i := bytes.LastIndexByte(m, '(')
	if i < 1 {
		return false
	}
	e.Seconds = seconds(m[i+1:])
	m = bytes.TrimRight(m[:i], " ")
	said := phpTimedOut
	if e.Kind == pipeline.PHPSlow {
		said = phpTooSlow
	}
	if !bytes.HasSuffix(m, said) {
		return false
	}
	m = m[:len(m)-len(said)]
	if i := bytes.Index(m, phpRequest); i >= 0 {
		e.Request = clip(string(bytes.TrimSuffix(m[i+len(phpRequest):], []byte(`")`))))
		m = m[:i+1]
	}
	e.Script = clip(string(bytes.TrimSuffix(m, []byte("'"))))
	return true
}

func seconds(s []byte) float64 {
	if len(s) > 32 {
		return 0
	}
	v, err := strconv.ParseFloat(string(s), 64)
	if err != nil || v < 0 || v > maxSpan/1e9 {
		return 0
	}
	return v
}

// leadingInt reads the digits at the start of s; 0 when there are none or too many.
func leadingInt(s []byte) int {
	end := 0
	for end < len(s) && s[end] >= '0' && s[end] <= '9' {
		end++
	}
	n, ok := uintOf(s[:end])
	if !ok {
		return 0
	}
	return int(n)
}

// time reads [29-Mar-2026 01:26:24] or with microseconds; 0 when there is none.
func (f *phpFPM) time(front []byte) int64 {
	if len(front) < 22 || front[0] != '[' {
		return 0
	}
	s := front[1:]
	if s[2] != '-' || s[6] != '-' || s[11] != ' ' || s[14] != ':' || s[17] != ':' {
		return 0
	}
	d, mo, y := num(s[:2]), monthOf(s[3:6]), num(s[7:11])
	h, mi, sec := num(s[12:14]), num(s[15:17]), num(s[18:20])
	if !validDate(y, mo, d, h, mi, sec) {
		return 0
	}
	t := f.wall.unix(f.zone, y, mo, d, h, mi, sec) * 1e9
	if s[20] == '.' {
		frac, _ := fraction(s[21:])
		t += frac
	}
	return t
}
