package format

import (
	"time"
)

// daysTo gives the days from 1970-01-01 to a date of the proleptic Gregorian calendar (Howard Hinnant,
// "chrono-compatible low-level date algorithms").
func daysTo(y, m, d int) int64 {
	if m <= 2 {
		y--
	}
	era := y / 400
	yoe := y - era*400
	shifted := m - 3
	if m <= 2 {
		shifted = m + 9
	}
	doy := (153*shifted+2)/5 + d - 1
	doe := yoe*365 + yoe/4 - yoe/100 + doy
	return int64(era)*146097 + int64(doe) - 719468
}

var monthDays = [13]int{0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}

// validDate tells whether the parts are those of a day and a second; a leap second counts as the next one.
func validDate(y, mo, d, h, mi, s int) bool {
	if y < 1970 || y > 2199 || mo < 1 || mo > 12 || d < 1 || d > monthDays[mo] {
		return false
	}
	if mo == 2 && d == 29 && (y%4 != 0 || y%100 == 0 && y%400 != 0) {
		return false
	}
	return h >= 0 && h < 24 && mi >= 0 && mi < 60 && s >= 0 && s <= 60
}

// unix gives the seconds since the epoch of a time in zone; nil is UTC.
func unix(zone *time.Location, y, mo, d, h, mi, s int) int64 {
	if zone == nil || zone == time.UTC {
		return daysTo(y, mo, d)*86400 + int64(h*3600+mi*60+s)
	}
	return time.Date(y, time.Month(mo), d, h, mi, s, 0, zone).Unix()
}

// A wallClock gives the time of local digits, line after line of one stream. When clocks go back, the digits of one hour
// come twice: they are of the first pass until the stream itself steps back.
type wallClock struct {
	near   int64 // ns: when the stream was last written, as it was opened; 0: unknown
	first  int64 // s: the newest of the first pass
	back   int   // lines in a row that stepped back
	second bool
}

const (
	// stepBack is how far behind the newest line one may be whose clock was not set back, in seconds: HAProxy logs at the
	// end when a request began.
	stepBack = 600
	// stepsBack is how many such lines in a row tell that the clock was.
	stepsBack = 2
	hours3    = 3 * 3600
)

// unix is the function of this name, and in a repeated hour the pass in which time goes on.
func (c *wallClock) unix(zone *time.Location, y, mo, d, h, mi, s int) int64 {
	at := unix(zone, y, mo, d, h, mi, s)
	first, second, twice := passes(zone, at)
	if !twice {
		return at
	}
	if c.first == 0 || max(c.first-first, first-c.first) > hours3 { // another autumn
		near := c.near / 1e9
		*c = wallClock{near: c.near, first: first, second: c.near != 0 && max(near-second, second-near) <= stepBack}
	}
	switch {
	case c.second:
		return second
	case c.first-first > stepBack:
		c.back++
		c.second = c.back >= stepsBack
		return second
	}
	c.back, c.first = 0, max(c.first, first)
	return first
}

// passes gives both times of digits that come twice in zone, of which at is one; else twice is false. In seconds.
func passes(zone *time.Location, at int64) (first, second int64, twice bool) {
	if zone == nil || zone == time.UTC {
		return at, at, false
	}
	offset := func(at int64) int64 {
		_, seconds := time.Unix(at, 0).In(zone).Zone()
		return int64(seconds)
	}
	before, after := offset(at-hours3), offset(at+hours3)
	if before <= after {
		return at, at, false
	}
	digits := at + offset(at)
	first, second = digits-before, digits-after
	return first, second, offset(first) == before && offset(second) == after
}

// num reads exactly the digits of s; -1 when one is none.
func num(s []byte) int {
	n := 0
	for _, c := range s {
		if c < '0' || c > '9' {
			return -1
		}
		n = n*10 + int(c-'0')
	}
	return n
}

// monthOf reads the three letters of an English month; 0 when they are none.
func monthOf(s []byte) int {
	switch string(s) {
	case "Jan":
		return 1
	case "Feb":
		return 2
	case "Mar":
		return 3
	case "Apr":
		return 4
	case "May":
		return 5
	case "Jun":
		return 6
	case "Jul":
		return 7
	case "Aug":
		return 8
	case "Sep":
		return 9
	case "Oct":
		return 10
	case "Nov":
		return 11
	case "Dec":
		return 12
	}
	return 0
}

// offsetOf reads +hhmm or +hh:mm as seconds.
func offsetOf(s []byte) (seconds int64, ok bool) {
	switch {
	case len(s) == 5:
	case len(s) == 6 && s[3] == ':':
	default:
		return 0, false
	}
	h, m := num(s[1:3]), num(s[len(s)-2:])
	if h < 0 || h > 15 || m < 0 || m > 59 || s[0] != '+' && s[0] != '-' {
		return 0, false
	}
	seconds = int64(h*3600 + m*60)
	if s[0] == '-' {
		seconds = -seconds
	}
	return seconds, true
}

const clfLen = len("29/Mar/2026:00:26:24 +0100")

// A clfClock reads the date of a common log line. Lines of one second repeat its bytes: they are read once.
type clfClock struct {
	raw  [clfLen]byte
	last int64
}

// parse gives ns since the epoch.
func (c *clfClock) parse(s []byte) (int64, bool) {
	if len(s) != clfLen {
		return 0, false
	}
	if *(*[clfLen]byte)(s) == c.raw {
		return c.last, true
	}
	if s[2] != '/' || s[6] != '/' || s[11] != ':' || s[14] != ':' || s[17] != ':' || s[20] != ' ' {
		return 0, false
	}
	d, mo, y := num(s[:2]), monthOf(s[3:6]), num(s[7:11])
	h, mi, sec := num(s[12:14]), num(s[15:17]), num(s[18:20])
	offset, ok := offsetOf(s[21:])
	if !ok || !validDate(y, mo, d, h, mi, sec) {
		return 0, false
	}
	c.last = (unix(nil, y, mo, d, h, mi, sec) - offset) * 1e9
	c.raw = [clfLen]byte(s)
	return c.last, true
}

const isoLen = len("2026-03-29T00:59:59")

// An isoClock reads ISO 8601 and RFC 3339 times. The bytes up to the second are read once a second; fraction
// and zone each time.
type isoClock struct {
	raw  [isoLen]byte
	last int64 // seconds, as if the zone were UTC
	zone *time.Location
	wall wallClock

	digits, meant int64 // seconds: the last that had no zone, and the time that they were
}

// parse gives ns since the epoch. A time without a zone is in the clock's.
func (c *isoClock) parse(s []byte) (int64, bool) {
	if len(s) < isoLen {
		return 0, false
	}
	if *(*[isoLen]byte)(s) != c.raw {
		if !c.read(s[:isoLen]) {
			return 0, false
		}
	}
	rest := s[isoLen:]
	var ns int64
	if len(rest) > 1 && (rest[0] == '.' || rest[0] == ',') {
		frac, n := fraction(rest[1:])
		if n == 0 {
			return 0, false
		}
		ns, rest = frac, rest[1+n:]
	}
	switch {
	case len(rest) == 1 && (rest[0] == 'Z' || rest[0] == 'z'):
		return c.last*1e9 + ns, true
	case len(rest) == 0:
		return c.local()*1e9 + ns, true
	}
	offset, ok := offsetOf(rest)
	if !ok {
		return 0, false
	}
	return (c.last-offset)*1e9 + ns, true
}

func (c *isoClock) read(s []byte) bool {
	if s[4] != '-' || s[7] != '-' || s[10] != 'T' && s[10] != ' ' && s[10] != 't' || s[13] != ':' || s[16] != ':' {
		return false
	}
	y, mo, d := num(s[:4]), num(s[5:7]), num(s[8:10])
	h, mi, sec := num(s[11:13]), num(s[14:16]), num(s[17:19])
	if !validDate(y, mo, d, h, mi, sec) {
		return false
	}
	c.last = unix(nil, y, mo, d, h, mi, sec)
	c.raw = [isoLen]byte(s)
	return true
}

// local gives the cached second when its digits are meant in the clock's zone.
func (c *isoClock) local() int64 {
	if c.zone == nil || c.zone == time.UTC {
		return c.last
	}
	if c.last != c.digits {
		t := time.Unix(c.last, 0).UTC()
		c.digits, c.meant = c.last, c.wall.unix(c.zone, t.Year(), int(t.Month()), t.Day(), t.Hour(), t.Minute(), t.Second())
	}
	return c.meant
}

// A yearless clock completes times that carry no year (klog, syslog). It takes the year that comes nearest to
// the last time it knew; before it knows one, the configured year; without either there is no time.
type yearless struct {
	zone *time.Location
	year int
	near int64 // ns; 0: none yet
}

// know tells the clock a full time that stands beside the line's own.
func (c *yearless) know(ns int64) {
	if ns != 0 {
		c.near = ns
	}
}

// resolve gives ns since the epoch, 0 when the year cannot be known or the parts are no date.
func (c *yearless) resolve(mo, d, h, mi, s int, frac int64) int64 {
	years := [3]int{c.year, c.year, c.year}
	if c.near != 0 {
		y := time.Unix(0, c.near).UTC().Year()
		years = [3]int{y, y - 1, y + 1}
	}
	var best, distance int64
	for _, y := range years {
		if !validDate(y, mo, d, h, mi, s) {
			continue
		}
		first, second, _ := passes(c.zone, unix(c.zone, y, mo, d, h, mi, s))
		for _, t := range [2]int64{first*1e9 + frac, second*1e9 + frac} {
			if away := max(t-c.near, c.near-t); best == 0 || away < distance {
				best, distance = t, away
			}
		}
	}
	c.know(best)
	return best
}
